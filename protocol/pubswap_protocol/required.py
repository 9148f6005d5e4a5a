"""The settings of a run that a client must know, by names such as `swap.period`.

A client ignores an unknown setting unless the run requires it. So the default of a new setting must
change nothing, and no setting is ever renamed.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from pubswap_protocol.bounds import Strict
from pubswap_protocol.errors import UnknownSetting
from pubswap_protocol.settings import RunSettings


def required(settings: RunSettings) -> list[str]:
    """The settings whose values differ from their defaults."""
    defaults = dict(_values(RunSettings()))
    return [name for name, value in _values(settings) if value != defaults[name]]


def check_required(names: Iterable[str]) -> None:
    """Raises UnknownSetting if this version does not know one of the settings."""
    if unknown := sorted(set(names) - {name for name, _ in _values(RunSettings())}):
        raise UnknownSetting(
            f"The run requires {', '.join(unknown)}, which this version of pubswap does not know. "
            "Upgrade pubswap to the coordinator's version."
        )


def _values(table: Strict, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each setting of a table and its nested tables, by dotted name."""
    for name, value in table:
        if isinstance(value, Strict):
            yield from _values(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value

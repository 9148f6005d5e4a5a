"""Which of a run's settings a client must know, by names such as `swap.period`.

A client ignores a setting that it does not know unless the run requires it. So a setting that is
added later has a default that changes nothing, and none is renamed.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from pubswap_protocol.bounds import Strict
from pubswap_protocol.errors import UnknownSetting
from pubswap_protocol.settings import RunSettings


def required(settings: RunSettings) -> list[str]:
    """The settings with other values than their defaults."""
    defaults = dict(_values(RunSettings()))
    return [name for name, value in _values(settings) if value != defaults[name]]


def check_known(names: Iterable[str]) -> None:
    """Raises UnknownSetting for names of settings that are not known here."""
    if unknown := sorted(set(names) - {name for name, _ in _values(RunSettings())}):
        raise UnknownSetting(
            f"The run requires {', '.join(unknown)}, which this version of pubswap does not know. "
            "Upgrade pubswap to the coordinator's version."
        )


def _values(table: Strict, before: str = "") -> Iterator[tuple[str, Any]]:
    """Each setting of a table and of those within it, by its dotted name."""
    for name, value in table:
        if isinstance(value, Strict):
            yield from _values(value, f"{before}{name}.")
        else:
            yield before + name, value

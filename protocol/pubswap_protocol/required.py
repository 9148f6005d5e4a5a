"""The settings of a run that a client must know, by names such as `swap.period`.

A client ignores an unknown setting unless the run requires it. So the default of a new setting must
change nothing, and no setting is ever renamed.
"""

from collections.abc import Iterable
from operator import attrgetter

from pubswap_protocol.command_line.keys import dotted_keys
from pubswap_protocol.errors import UnknownSetting
from pubswap_protocol.settings import RunSettings


def required(settings: RunSettings) -> list[str]:
    """The settings whose values differ from their defaults."""
    defaults = RunSettings()
    values = ((name, attrgetter(name)) for name in dotted_keys(RunSettings))
    return [name for name, value in values if value(settings) != value(defaults)]


def check_required(names: Iterable[str]) -> None:
    """Raises UnknownSetting if this version does not know one of the settings."""
    if unknown := sorted({*names} - {*dotted_keys(RunSettings)}):
        raise UnknownSetting(
            f"The run requires {', '.join(unknown)}, which this version of pubswap does not know. "
            "Upgrade pubswap to the coordinator's version."
        )

"""Which of a run's settings a client must know, by names such as `swap.period`.

A client ignores a setting that it does not know unless the run requires it. So a setting that is
added later has a default that changes nothing, and none is renamed.
"""

from collections.abc import Iterable

from pubswap_protocol.errors import UnknownSetting
from pubswap_protocol.settings import RunSettings, values_of


def required(settings: RunSettings) -> list[str]:
    """The settings with other values than their defaults."""
    defaults = dict(values_of(RunSettings()))
    return [name for name, value in values_of(settings) if value != defaults[name]]


def check_known(names: Iterable[str]) -> None:
    """Raises UnknownSetting for names of settings that are not known here."""
    if unknown := sorted(set(names) - {name for name, _ in values_of(RunSettings())}):
        raise UnknownSetting(
            f"The run requires {', '.join(unknown)}, which this version of pubswap does not know. "
            "Upgrade pubswap to the coordinator's version."
        )

"""Durations as people write them: 55m, 11h30m, 90s."""

import re

from pubswap_protocol.errors import InvalidSettings


def seconds_of(text: str, option: str) -> float:
    """The seconds of a duration; raises InvalidSettings, naming the option, if it is none."""
    found = re.fullmatch(r"(?:(\d{1,5})h)?(?:(\d{1,5})m)?(?:(\d{1,7})s)?", text, re.ASCII)
    hours, minutes, seconds = (int(part or 0) for part in found.groups()) if found else (0, 0, 0)
    total = 3600.0 * hours + 60.0 * minutes + seconds
    if not total:
        raise InvalidSettings(f"{option} takes a time such as 55m, 11h30m or 90s, not {text!r}.")
    return total

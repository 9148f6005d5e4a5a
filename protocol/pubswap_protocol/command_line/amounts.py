"""Human-readable times, sizes, shares and lists."""

import re
from collections.abc import Iterable
from math import sqrt

from rich.filesize import decimal

from pubswap_protocol.errors import InvalidSettings


def size_text(size: float) -> str:
    """Bytes in a suitable unit: 12.3 MB."""
    return decimal(round(size))


def counted(number: int, noun: str) -> str:
    """Such as `1 client` or `1,200 clients`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def duration_text(seconds: float) -> str:
    """Seconds in a suitable unit: 0.8 s, 51 s, 34 min, 5.1 h, 2 d."""
    number, unit = seconds, "s"
    for size, larger in ((60, "min"), (60, "h"), (24, "d")):
        if number < size:
            break
        number, unit = number / size, larger
    return f"{number:.{1 if number < 10 else 0}f} {unit}".replace(".0 ", " ")


def wilson(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share that was measured on `count` problems."""
    z = 1.959964
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    spread = z * sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2) / (1 + z * z / count)
    return max(0.0, middle - spread), min(1.0, middle + spread)


def share_text(share: float, count: int | None) -> str:
    """A share with its interval and the number of problems: 0.742 (0.66 to 0.81, n = 120)."""
    if not count:
        return f"{share:.3f}"
    return f"{share:.3f} ({interval_text(share, count)}, n = {count})"


def interval_text(share: float, count: int) -> str:
    """Wilson's interval in words: 0.66 to 0.81."""
    low, high = wilson(share, count)
    return f"{low:.2f} to {high:.2f}"


def first_few(items: Iterable[object], most: int = 5) -> str:
    """Such as `3, 17, 20, 21, 30 and 5 more`."""
    texts = [str(item) for item in items]
    more = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {more} more" if more > 0 else "")


def seconds_of(text: str, option: str) -> float:
    """Parse a time such as 11h30m into seconds; raises InvalidSettings, naming the option."""
    match = re.fullmatch(r"(?:(\d{1,5})h)?(?:(\d{1,5})m)?(?:(\d{1,7})s)?", text, re.ASCII)
    hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0)
    total = 3600.0 * hours + 60.0 * minutes + seconds
    if not total:
        raise InvalidSettings(f"{option} takes a time such as 55m, 11h30m or 90s, not {text!r}.")
    return total

"""Failures in words: what went wrong, and what to do next."""

import errno
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,62}$"
NAME_FORM = (
    "1 to 63 small letters, digits, dots, underscores and hyphens, with a letter or digit first, "
    "such as hospital-a"
)

_REMEDIES = {
    errno.EROFS: "Choose a folder on a disk that can be written to.",
    errno.EACCES: "Choose a folder that this user may use, or change its owner.",
    errno.EPERM: "Choose a folder that this user may use, or change its owner.",
    errno.ENOSPC: "Make room, and give the same command again.",
    errno.EDQUOT: "Make room, and give the same command again.",
}


def first_fault(error: ValidationError) -> str:
    """The first thing that is wrong with what was given, with its key."""
    return fault_text(error.errors()[0])


def fault_text(fault: Mapping[str, Any]) -> str:
    """One of pydantic's errors as a person reads it."""
    said = fault["msg"].removeprefix("Value error, ")
    if fault.get("ctx", {}).get("pattern") == NAME_PATTERN:
        said = f"{fault['input']!r} is no name: a name is {NAME_FORM}"
    key = ".".join(str(part) for part in fault["loc"])
    return f"{key}: {said}" if key else said


def system_fault(error: OSError) -> str:
    """The operating system's refusal: of which file, why, and what helps."""
    said = error.strerror or str(error) or type(error).__name__
    where = f"{error.filename}: " if error.filename is not None else ""
    remedy = _REMEDIES.get(error.errno or 0, "")
    return f"{where}{said}. {remedy}".strip()

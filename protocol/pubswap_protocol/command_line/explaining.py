"""The operating system's failures in words: what went wrong, and what to do next."""

import errno

_REMEDIES = {
    errno.EROFS: "Choose a folder on a disk that can be written to.",
    errno.EACCES: "Choose a folder that this user may use, or change its owner.",
    errno.EPERM: "Choose a folder that this user may use, or change its owner.",
    errno.ENOSPC: "Make room, and give the same command again.",
    errno.EDQUOT: "Make room, and give the same command again.",
}


def system_fault(error: OSError) -> str:
    """The operating system's refusal: of which file, why, and what helps."""
    said = error.strerror or str(error) or type(error).__name__
    where = f"{error.filename}: " if error.filename is not None else ""
    remedy = _REMEDIES.get(error.errno or 0, "")
    return f"{where}{said}. {remedy}".strip()

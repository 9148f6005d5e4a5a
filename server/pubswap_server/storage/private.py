"""Folders and files that no other user of the machine may read."""

from pathlib import Path

_GROUP_AND_OTHERS = 0o077


def make_private(folder: Path) -> bool:
    """Make the folder for its owner only; returns whether it is, for one that was there is left.

    It may be the user's own, with other things in it.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return not folder.stat().st_mode & _GROUP_AND_OTHERS


def keep_private(path: Path) -> None:
    """Take a folder or file of ours from everybody else, if there is one."""
    if path.exists() and path.stat().st_mode & _GROUP_AND_OTHERS:
        path.chmod(path.stat().st_mode & ~_GROUP_AND_OTHERS)


def private_folder(folder: Path) -> Path:
    """A folder of ours, new or not, for its owner only."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    keep_private(folder)
    return folder

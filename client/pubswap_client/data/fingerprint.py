"""Which local files a split is made from, and what they hold."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from pubswap_protocol.errors import InvalidProblems, InvalidSettings

SUFFIXES = (".parquet", ".jsonl", ".json")
# What the hub and `save_to_disk` put beside the rows.
_BESIDE = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"}


class Origin(BaseModel):
    """Something that a split is made from: a file, a data set of the hub, or a generator."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    sha256: str | None = None
    revision: str | None = None


def local_parts(path: Path) -> list[Path]:
    """What holds rows: files, and folders written by `save_to_disk`, in the order of their names.

    Hidden folders are left out. Raises InvalidSettings if there is no such path, InvalidProblems
    if nothing in it is of a format that is known.
    """
    if not path.exists():
        raise InvalidSettings(f"from: there is no {path}.")
    if path.is_file():
        if path.suffix in SUFFIXES:
            return [path]
        raise InvalidProblems(f"from: {path} is none of {', '.join(SUFFIXES)}.")
    saved = _saved_folders(path)
    found = [
        file
        for file in path.rglob("*")
        if file.suffix in SUFFIXES
        and file.name not in _BESIDE
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
        and not any(folder in file.parents for folder in saved)
    ]
    if not (saved or found):
        raise InvalidProblems(
            f"from: {path} holds no {', '.join(SUFFIXES)} file, and nothing that `save_to_disk` "
            "of the package datasets wrote."
        )
    return sorted([*saved, *found])


def file_origins(path: Path) -> list[Origin]:
    """The files of a local source with their digests; names are relative to it."""
    return [Origin(name=name, sha256=sha256_of(file)) for name, file in _named_files(path)]


def sha256_of(file: Path) -> str:
    """The digest of a file's bytes."""
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def named_in(path: Path, part: Path) -> str:
    """A part's name below `path`, which is the same wherever `path` lies."""
    return part.name if part == path else part.relative_to(path).as_posix()


def _named_files(path: Path) -> Iterator[tuple[str, Path]]:
    for part in local_parts(path):
        files = sorted(part.rglob("*.arrow")) if part.is_dir() else [part]
        yield from ((named_in(path, file), file) for file in files)


def _saved_folders(path: Path) -> list[Path]:
    whole = [file.parent for file in path.rglob("dataset_dict.json")]
    single = [file.parent for file in path.rglob("state.json")]
    return whole + [folder for folder in single if not any(w in folder.parents for w in whole)]

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


def is_saved(path: Path) -> bool:
    """Whether the folder was written by `save_to_disk`."""
    return (path / "dataset_dict.json").is_file() or (path / "state.json").is_file()


def data_files(path: Path) -> list[Path]:
    """The files with rows, in the order of their names; hidden folders are left out.

    Raises InvalidSettings if there is no such path, InvalidProblems if no file is of a format
    that is known.
    """
    if not path.exists():
        raise InvalidSettings(f"from: there is no {path}.")
    if path.is_file():
        if path.suffix in SUFFIXES:
            return [path]
        raise InvalidProblems(f"from: {path} is none of {', '.join(SUFFIXES)}.")
    found = sorted(
        file
        for file in path.rglob("*")
        if file.suffix in SUFFIXES
        and file.name not in _BESIDE
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
    )
    if not found:
        raise InvalidProblems(f"from: {path} holds no {', '.join(SUFFIXES)} file.")
    return found


def file_origins(path: Path) -> list[Origin]:
    """The files of a local source with their digests; names are relative to it."""
    return [Origin(name=name, sha256=sha256_of(file)) for name, file in _named_files(path)]


def sha256_of(file: Path) -> str:
    """The digest of a file's bytes."""
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def _named_files(path: Path) -> Iterator[tuple[str, Path]]:
    if path.is_file():
        yield path.name, path
    elif is_saved(path):
        for file in sorted(path.rglob("*.arrow")):
            yield file.relative_to(path).as_posix(), file
    else:
        for file in data_files(path):
            yield file.relative_to(path).as_posix(), file

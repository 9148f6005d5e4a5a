"""`manifest.json`: the origins of a split, and the contents of its files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from pubswap_client.data.spec import DataSpec
from pubswap_protocol.digests import sha256_of
from pubswap_protocol.errors import Conflict, InvalidProblems, InvalidSettings, first_fault

SUFFIXES = (".parquet", ".jsonl")  # of the hub's files


class Origin(BaseModel, extra="forbid", frozen=True):
    """A source of a split: a file, a data set on the hub, or a generator."""

    name: str
    sha256: str | None = None
    revision: str | None = None


def local_files(path: Path) -> list[Path]:
    """The file, or a folder's files with rows, sorted by name, without hidden folders.

    Raises InvalidSettings if the path does not exist, InvalidProblems if a folder has no such file.
    """
    if not path.exists():
        raise InvalidSettings(f"from: there is no {path}.")
    if path.is_file():
        return [path]
    files = [
        file
        for file in path.rglob("*")
        if file.suffix in SUFFIXES
        and not file.is_dir()
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
    ]
    if not files:
        raise InvalidProblems(f"from: {path} holds no {', '.join(SUFFIXES)} file.")
    return sorted(files)


def file_origins(path: Path) -> list[Origin]:
    """The files of a local source with their digests; names are relative to it."""
    return [Origin(name=named_in(path, file), sha256=sha256_of(file)) for file in local_files(path)]


def named_in(path: Path, file: Path) -> str:
    """A file's name relative to `path`, so that it does not depend on where `path` is."""
    return file.name if file == path else file.relative_to(path).as_posix()


MANIFEST = "manifest.json"


class SplitFile(BaseModel, extra="forbid", frozen=True):
    """One JSONL file of the split."""

    sha256: str
    problems: int
    topics: dict[str, int]


class LeftOut(BaseModel, extra="forbid", frozen=True):
    """Rows that could not be used for one reason, with the places of the first ones."""

    reason: str
    rows: int
    first: list[str]


class DataManifest(BaseModel, extra="forbid", frozen=True):
    """The record of a split. It contains no path, so it is the same wherever the split is made."""

    pubswap: str
    spec: dict[str, Any]
    origins: list[Origin]
    left_out: list[LeftOut]
    files: dict[str, SplitFile]

    def topics(self) -> list[str]:
        """All topics, the most frequent first."""
        total: Counter[str] = Counter()
        for file in self.files.values():
            total.update(file.topics)
        return sorted(total, key=lambda topic: (-total[topic], topic))


def spec_record(spec: DataSpec) -> dict[str, Any]:
    """The spec as the manifest records it; of local files the contents count, not the path."""
    return spec.model_dump(mode="json", exclude={"from_"})


def read_manifest(folder: Path) -> DataManifest:
    """The manifest of a split; raises InvalidProblems if the folder has none."""
    path = folder / MANIFEST
    try:
        return DataManifest.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InvalidProblems(
            f"{path} cannot be read ({error.strerror}): the folder is not a split made by "
            "`pubswap data prepare`."
        ) from None
    except ValidationError as error:
        raise InvalidProblems(f"{path} is not a manifest: {first_fault(error)}.") from None


def check_files(folder: Path, manifest: DataManifest) -> None:
    """Raises InvalidProblems, naming the file, if one is missing or was changed."""
    for name, file in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise InvalidProblems(f"{path} is missing; remove {folder} and prepare it again.")
        if sha256_of(path) != file.sha256:
            raise InvalidProblems(
                f"{path} was changed: its digest is not the manifest's. Remove {folder} and "
                "prepare it again."
            )


def check_same(folder: Path, manifest: DataManifest, spec: DataSpec) -> None:
    """Raises Conflict unless the folder's split has this spec and the same local files."""
    new, old = spec_record(spec), manifest.spec
    # An earlier version's settings that are gone count if they were set, as an instruction was.
    gone = {key for key in old.keys() - new.keys() if old[key]}
    for key in sorted(new.keys() | gone):
        if new.get(key) != old.get(key):
            raise Conflict(
                f"{folder} holds another split: its {key} is {old.get(key)!r}, not "
                f"{new.get(key)!r}. Give another folder."
            )
    if spec.from_ is not None and file_origins(spec.from_) != manifest.origins:
        raise Conflict(
            f"{folder} holds a split of other files: it was not made from those of {spec.from_}. "
            "Give another folder, or remove it."
        )

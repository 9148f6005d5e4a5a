"""`manifest.json`: what a split was made from, and what its files hold."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from pubswap_client.data.fingerprint import Origin, file_origins, sha256_of
from pubswap_client.data.spec import DataSpec
from pubswap_protocol.errors import Conflict, InvalidProblems, InvalidSettings

MANIFEST = "manifest.json"


class LeftOut(BaseModel):
    """Rows that could not be used, for one reason."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    reason: str
    rows: int
    first: list[str]


class SplitFile(BaseModel):
    """One JSONL file of the split."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sha256: str
    problems: int
    topics: dict[str, int]


class Manifest(BaseModel):
    """The whole record. It names no path, so that it is the same wherever the split is made."""

    model_config = ConfigDict(extra="forbid", frozen=True)

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
    """The spec as the manifest has it; of local files counts what they hold, not where they lie."""
    return spec.model_dump(mode="json", exclude={"from_"})


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a split; raises InvalidProblems if the folder holds none."""
    path = folder / MANIFEST
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InvalidProblems(
            f"{path} cannot be read ({error.strerror}): the folder holds no split made by "
            "`pubswap data prepare`."
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise InvalidProblems(f"{path} is no manifest: {key}: {first['msg']}.") from None


def check_files(folder: Path, manifest: Manifest) -> None:
    """Raises InvalidProblems, naming the file, unless all are as they were written."""
    for name, file in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise InvalidProblems(f"{path} is missing; remove {folder} and prepare it again.")
        if sha256_of(path) != file.sha256:
            raise InvalidProblems(
                f"{path} was changed: its digest is not the manifest's. Remove {folder} and "
                "prepare it again."
            )


def check_same(folder: Path, manifest: Manifest, spec: DataSpec) -> None:
    """Raises Conflict unless the folder's split is this spec's, of the same local files.

    Files that are not there any more cannot be compared, and need not be.
    """
    wanted = spec_record(spec)
    for key in sorted(wanted.keys() | manifest.spec.keys()):
        if wanted.get(key) != manifest.spec.get(key):
            raise Conflict(
                f"{folder} holds another split: its {key} is {manifest.spec.get(key)!r}, not "
                f"{wanted.get(key)!r}. Give another folder."
            )
    if spec.from_ is None:
        return
    try:
        origins = file_origins(spec.from_)
    except (InvalidProblems, InvalidSettings):
        return
    if origins != manifest.origins:
        raise Conflict(
            f"{folder} holds a split of other files: those of {spec.from_} are not what it was "
            "made from. Give another folder, or remove it."
        )

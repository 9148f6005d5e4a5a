"""Rows of a hub data set, from the hub or from local files in its format, through `datasets`."""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pubswap_client.data.manifest import Origin, file_origins, local_files, named_in
from pubswap_client.data.sources import HubSet, Row
from pubswap_client.data.spec import DataSpec
from pubswap_protocol.errors import InvalidProblems, InvalidSettings

if TYPE_CHECKING:
    from datasets import Dataset

_BUILDERS = {".parquet": "parquet", ".jsonl": "json", ".json": "json"}
_REVISION = re.compile(r"/([0-9a-f]{40})/")


@dataclass(frozen=True)
class SourceTable:
    """Rows of one file or split of a data set, which `where` names."""

    hub_set: HubSet
    where: str
    rows: Dataset

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[tuple[str, Row]]:
        for number, row in enumerate(self.rows.select_columns(list(self.hub_set.columns))):
            yield f"{self.where}, row {number}", row


@contextmanager
def tables(
    spec: DataSpec, sets: Sequence[HubSet]
) -> Iterator[tuple[list[SourceTable], list[Origin]]]:
    """All rows of these sets, and where they are from; local files are read in the context.

    Raises InvalidSettings if the hub cannot be reached or there is no such path, InvalidProblems
    for a file in another format or without a column that is needed.
    """
    if spec.from_ is None:
        loaded = [table for hub_set in sets for table in _from_hub(hub_set)]
        yield loaded, [_hub_origin(hub_set, loaded) for hub_set in sets]
        return
    # `datasets` keeps a copy of what it reads in a cache; one of the user's files is enough.
    with tempfile.TemporaryDirectory(prefix="pubswap-data-") as cache:
        loaded = list(_local(spec.from_, sets, cache))
        for hub_set in sets:
            if not any(table.hub_set is hub_set for table in loaded):
                raise InvalidProblems(
                    f"{spec.from_} holds no file in the format of {hub_set.hub}, "
                    f"with the columns {', '.join(hub_set.columns)}."
                )
        yield loaded, file_origins(spec.from_)


def _from_hub(hub_set: HubSet) -> Iterator[SourceTable]:
    import datasets
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    for config in hub_set.configs:
        where = "/".join(name for name in (hub_set.hub, config) if name)
        try:
            splits = datasets.load_dataset(hub_set.hub, config)
        except (OSError, HTTPError, datasets.exceptions.DatasetsError, ValueError) as error:
            raise InvalidSettings(
                f"from: the hub did not give {where} ({_reason(error)}). Check the connection "
                "and HF_HUB_OFFLINE, or download it elsewhere and give its folder with --from."
            ) from None
        for split in sorted(splits):
            yield _table(hub_set, f"{where} {split}", splits[split])


def _hub_origin(hub_set: HubSet, loaded: Iterable[SourceTable]) -> Origin:
    """The commit is in the names of the folders where `datasets` caches what it downloads."""
    names = " ".join(
        file["filename"]
        for table in loaded
        if table.hub_set is hub_set
        for file in table.rows.cache_files
    )
    commit = _REVISION.search(names)
    return Origin(name=hub_set.hub, revision=commit.group(1) if commit else None)


def _local(path: Path, sets: Sequence[HubSet], cache: str) -> Iterator[SourceTable]:
    for file in local_files(path):
        rows = _load(file, sets, cache)
        yield _table(_which(rows.column_names, sets), named_in(path, file), rows)


def _load(file: Path, sets: Sequence[HubSet], cache: str) -> Dataset:
    import datasets

    options: dict[str, Any] = {}
    if file.suffix == ".parquet":
        columns = _parquet_columns(file)
        hub_set = _which(columns, sets)
        _check_columns(str(file), columns, hub_set)
        # Only the columns needed are read: DeepMath's solutions are 5 GB.
        options["columns"] = list(hub_set.columns)

    level = datasets.utils.logging.get_verbosity()
    datasets.utils.logging.set_verbosity(logging.CRITICAL)  # what fails is told below
    datasets.disable_progress_bars()
    try:
        options |= {"data_files": [str(file)], "split": "train", "cache_dir": cache}
        return datasets.load_dataset(_BUILDERS[file.suffix], **options)
    except StopIteration:
        raise _unreadable(file, ValueError("there is nothing in it")) from None
    except (datasets.exceptions.DatasetsError, ValueError, OSError, TypeError) as error:
        raise _unreadable(file, error) from None
    finally:
        datasets.enable_progress_bars()
        datasets.utils.logging.set_verbosity(level)


def _parquet_columns(file: Path) -> list[str]:
    from pyarrow import ArrowException, parquet

    try:
        return list(parquet.read_schema(file).names)
    except (ArrowException, OSError) as error:
        raise _unreadable(file, error) from None


def _which(columns: Sequence[str], sets: Sequence[HubSet]) -> HubSet:
    marked = [hub_set for hub_set in sets if hub_set.marks and set(hub_set.marks) <= set(columns)]
    return marked[0] if marked else sets[0]


def _table(hub_set: HubSet, where: str, rows: Dataset) -> SourceTable:
    _check_columns(where, rows.column_names, hub_set)
    return SourceTable(hub_set, where, rows)


def _check_columns(where: str, columns: Sequence[str], hub_set: HubSet) -> None:
    for column in hub_set.columns:
        if column not in columns:
            raise InvalidProblems(
                f"{where} is not in the format of {hub_set.hub}: it has no column {column!r}, "
                f"but {', '.join(columns) or 'none'}."
            )


def _unreadable(path: Path, error: Exception) -> InvalidProblems:
    return InvalidProblems(
        f"from: {path} cannot be read as {path.suffix.lstrip('.')}: {_reason(error)}."
    )


def _reason(error: BaseException) -> str:
    """The first line of what went wrong; `datasets` keeps the cause behind its own error."""
    cause = error.__cause__ or error
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0].rstrip(".")

"""Load rows of a hub data set, from the hub's cache or from a local folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pubswap_client.data.examples import reason_of
from pubswap_client.data.manifest import Origin, file_origins, local_files, named_in
from pubswap_client.data.sources import HubSet, Row
from pubswap_client.data.spec import DataSpec
from pubswap_protocol.command_line.formats import PARQUET, file_format
from pubswap_protocol.errors import InvalidProblems, InvalidSettings

if TYPE_CHECKING:
    from pyarrow import Table

_AT_ONCE = 1000  # rows that are Python objects at a time
_LARGEST = 1 << 30  # bytes of a JSON lines file, all of which decide its columns' types


@dataclass(frozen=True)
class SourceTable:
    """Rows of one file of a data set; `where` names the file."""

    hub_set: HubSet
    where: str
    table: Table

    def __len__(self) -> int:
        return len(self.table)

    def __iter__(self) -> Iterator[tuple[str, Row]]:
        batches = self.table.to_batches(max_chunksize=_AT_ONCE)
        rows = (row for batch in batches for row in batch.to_pylist())
        for number, row in enumerate(rows):
            yield f"{self.where}, row {number}", row


def tables(spec: DataSpec, sets: Sequence[HubSet]) -> tuple[list[SourceTable], list[Origin]]:
    """All rows of these sets, and their origins.

    Raises InvalidSettings if the hub cannot be reached or the path does not exist, InvalidProblems
    for a file in another format or without a required column.
    """
    if spec.from_ is None:
        folders = [(hub_set, _downloaded(hub_set)) for hub_set in sets]
        loaded = [table for hub_set, folder in folders for table in _read(folder, [hub_set])]
        # The hub's cache names the folder of a commit after it.
        return loaded, [Origin(name=each.hub, revision=folder.name) for each, folder in folders]
    loaded = list(_read(spec.from_, sets))
    for hub_set in sets:
        if not any(table.hub_set is hub_set for table in loaded):
            raise InvalidProblems(
                f"{spec.from_} holds no file in the format of {hub_set.hub}, "
                f"with the columns {', '.join(hub_set.columns)}."
            )
    return loaded, file_origins(spec.from_)


def _downloaded(hub_set: HubSet) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    try:
        files = list(hub_set.files)
        return Path(snapshot_download(hub_set.hub, repo_type="dataset", allow_patterns=files))
    except (HTTPError, OSError) as error:
        raise InvalidSettings(
            f"from: the hub did not provide {hub_set.hub} ({reason_of(error)}). Check the "
            "connection and HF_HUB_OFFLINE, or download it elsewhere and give its folder with "
            "--from."
        ) from None


def _read(path: Path, sets: Sequence[HubSet]) -> Iterator[SourceTable]:
    from pyarrow import ArrowException, json, parquet

    for file in local_files(path):
        try:
            if file.suffix == ".parquet":
                opened = parquet.ParquetFile(file)
                columns, take = opened.schema_arrow.names, opened.read
            else:
                whole = json.read_json(file, json.ReadOptions(block_size=_LARGEST))
                columns, take = whole.column_names, whole.select
            hub_set = next((each for each in sets if each.mark in columns), sets[0])
            _check_columns(str(file), columns, hub_set)
            # Read only the required columns, because DeepMath's solutions are 5 GB.
            where, table = named_in(path, file), take(list(hub_set.columns))
            yield SourceTable(hub_set, where, hub_set.as_hub(table, where))
        except (ArrowException, OSError) as error:
            suffix, found = file.suffix.lstrip("."), file_format(file)
            wrong = found is not None and found != PARQUET
            reason = f"it is {found.name}" if found and wrong else reason_of(error)
            raise InvalidProblems(f"from: {file} cannot be read as {suffix}: {reason}.") from None


def _check_columns(where: str, columns: Sequence[str], hub_set: HubSet) -> None:
    for column in hub_set.columns:
        if column not in columns:
            raise InvalidProblems(
                f"{where} is not in the format of {hub_set.hub}: it has no column {column!r}, "
                f"but {', '.join(columns) or 'none'}."
            )

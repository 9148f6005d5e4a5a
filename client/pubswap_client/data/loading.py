"""Load rows of a hub data set, from the hub's cache or from a local folder."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pubswap_client.data.convert.opening import open_table
from pubswap_client.data.convert.table import OpenTable
from pubswap_client.data.examples import reason_of
from pubswap_client.data.manifest import SUFFIXES, Origin, file_origins, local_files, named_in
from pubswap_client.data.sources import HubSet
from pubswap_client.data.spec import DataSpec
from pubswap_protocol.errors import InvalidSettings


@dataclass(frozen=True)
class SourceTable:
    """One file of a data set; `where` names the file."""

    hub_set: HubSet
    where: str
    table: OpenTable


def tables(spec: DataSpec, sets: Sequence[HubSet]) -> tuple[list[SourceTable], list[Origin]]:
    """The files of these sets, and their origins.

    Raises InvalidSettings if the hub cannot be reached, the path does not exist, or a file lacks a
    column, InvalidProblems for a file that is no table.
    """
    if spec.from_ is None:
        folders = [(hub_set, _downloaded(hub_set)) for hub_set in sets]
        loaded = [table for hub_set, folder in folders for table in _read(folder, [hub_set])]
        # The hub's cache names the folder of a commit after it.
        return loaded, [Origin(name=each.hub, revision=folder.name) for each, folder in folders]
    return list(_read(spec.from_, sets)), file_origins(spec.from_)


def _downloaded(hub_set: HubSet) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    try:
        files = [f"*{suffix}" for suffix in SUFFIXES]
        return Path(snapshot_download(hub_set.hub, repo_type="dataset", allow_patterns=files))
    except (HTTPError, OSError) as error:
        raise InvalidSettings(
            f"from: the hub did not provide {hub_set.hub} ({reason_of(error)}). Check the "
            "connection and HF_HUB_OFFLINE, or download it elsewhere and give its folder with "
            "--from."
        ) from None


def _read(path: Path, sets: Sequence[HubSet]) -> Iterator[SourceTable]:
    for file in local_files(path):
        columns = open_table(file).columns
        fitting = [each for each in sets if set(each.columns) <= set(columns)]
        hub_set = (fitting or sets)[0]
        # Read only the required columns, because DeepMath's solutions are 5 GB.
        table = open_table(file, only=hub_set.columns)
        table.require(hub_set.columns, file)
        yield SourceTable(hub_set, named_in(path, file), table)

"""The problems of a split's source, in random order: from JSONL, or from the hub's files."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pubswap_client.data.convert.opening import open_table
from pubswap_client.data.convert.table import OpenTable
from pubswap_client.data.examples import MAX_FAULT_SHARE, Tally, Unusable, reason_of, unique
from pubswap_client.data.manifest import SUFFIXES, Origin, file_origins, local_files, named_in
from pubswap_client.data.sources import HUB_SETS, HubSet
from pubswap_client.data.spec import DataSpec
from pubswap_protocol.command_line.progress_bar import next_stage, progress_bar
from pubswap_protocol.draws import rng_for
from pubswap_protocol.errors import InvalidProblems, InvalidSettings
from pubswap_protocol.problems import Problem, PromptLimit, read_problems
from pubswap_protocol.verifiers import check_usable

Source = tuple[dict[str, list[Problem]], list[Origin]]


@dataclass(frozen=True)
class SourceTable:
    """One file of a data set; `where` names the file."""

    hub_set: HubSet
    where: str
    table: OpenTable


def read_source(spec: DataSpec, tally: Tally, limit: PromptLimit | None = None) -> Source:
    """Distinct problems in random order, by the sets of a spec's source, and its origins.

    Counts omitted rows and prompts over `limit` in `tally`. Raises InvalidSettings or
    InvalidProblems, naming the key or column.
    """
    if spec.source == "jsonl":
        return _jsonl(spec, tally, limit)
    return _hub_sets(HUB_SETS[spec.source], spec, tally, limit)


def _jsonl(spec: DataSpec, tally: Tally, limit: PromptLimit | None) -> Source:
    assert spec.from_ is not None  # the spec requires it
    read = []
    for line, problem in enumerate(read_problems(spec.from_), start=1):
        tally.places[problem.id] = f"line {line}"
        own = {
            # A tab or form feed at its beginning is a lost backslash, and is found later.
            "answer": problem.answer.rstrip().lstrip(" \n"),
            "topic": problem.topic.strip(),
            "verifier": problem.verifier or spec.verifier,
        }
        if isinstance(problem.prompt, str):
            own["prompt"] = problem.prompt.strip()
        read.append(problem.model_copy(update=own))
    read = list(_short(read, tally, limit))
    for verifier in sorted({problem.verifier for problem in read if problem.verifier}):
        check_usable(verifier)
    distinct = unique(read, tally, lambda problem: " ".join(problem.text.split()))
    return {"jsonl": _shuffled(distinct, spec.seed, "jsonl")}, file_origins(spec.from_)


def _hub_sets(
    sets: Sequence[HubSet], spec: DataSpec, tally: Tally, limit: PromptLimit | None
) -> Source:
    read: list[Problem] = []
    loaded, origins = tables(spec, sets)
    with progress_bar() as progress:
        next_stage(progress, "reading rows")
        for table in loaded:
            read += _short(_problems(table, tally), tally, limit)
    # Sort, so that the split does not depend on how the rows are spread over files.
    read.sort(key=lambda p: (p.id, p.text, p.answer, p.topic))
    problems = unique(read, tally, lambda problem: problem.id.rpartition("-")[2])
    shuffled = {}
    for name in (hub_set.name for hub_set in sets):
        subset = [problem for problem in problems if problem.id.startswith(f"{name}-")]
        shuffled[name] = _shuffled(subset, spec.seed, name)
    return shuffled, origins


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


def _problems(file: SourceTable, tally: Tally) -> Iterator[Problem]:
    """A file's problems; raises InvalidProblems at the end if over 5 % of its rows are broken.

    Each file counts by itself, because a large one would hide a small one that is of another kind.
    """
    rows = broken = 0
    for row in file.table.rows():
        rows += 1
        where = f"{file.where}, {file.table.unit} {row.number}"
        try:
            problem = file.hub_set.problem(row)
        except Unusable as error:
            tally.reasons[error.reason].append(where)
            broken += error.fault
            continue
        tally.places.setdefault(problem.id, where)
        yield problem
    if broken > MAX_FAULT_SHARE * rows:
        reasons = "; ".join(
            f"{len(places)} {reason} (such as {places[0]})"
            for reason, places in tally.reasons.items()
        )
        raise InvalidProblems(f"{broken} of {rows} rows of {file.where} cannot be used: {reasons}.")


def _short(
    problems: Iterable[Problem], tally: Tally, limit: PromptLimit | None
) -> Iterator[Problem]:
    """The problems whose prompts are within the limit."""
    for problem in problems:
        if limit is not None and limit.tokens(problem, tally.place(problem)) > limit.max_tokens:
            tally.reasons[f"a prompt of more than {limit.max_tokens} tokens"].append(problem.id)
        else:
            yield problem


def _shuffled(problems: Sequence[Problem], seed: int, name: str) -> list[Problem]:
    order = rng_for("data", seed, "order", name).permutation(len(problems))
    return [problems[index] for index in order.tolist()]

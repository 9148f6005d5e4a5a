"""Streams of a split's problems, in random order."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from pubswap_client.data.examples import Tally, Unusable, ask, asked, unique
from pubswap_client.data.loading import SourceTable, tables
from pubswap_client.data.manifest import Origin, file_origins
from pubswap_client.data.sources import HUB_SETS, HubSet
from pubswap_client.data.spec import DataSpec
from pubswap_client.data.tasks import TaskSpec
from pubswap_protocol.command_line.progress_bar import progress_bar
from pubswap_protocol.draws import rng_for
from pubswap_protocol.errors import InvalidProblems
from pubswap_protocol.problems import Problem, PromptLimit, parse_problem, read_jsonl
from pubswap_protocol.verifiers import check_usable


def jsonl_problems(path: Path, spec: DataSpec, tally: Tally) -> Iterator[Problem]:
    """The problems of the file, in order, with the spec's verifier and instruction.

    Their lines are in `tally.places`. Raises InvalidProblems, naming the line, for anything
    unusable, because the user can correct the file.
    """
    for number, line in read_jsonl(path):
        problem = parse_problem(line, f"{path}, line {number}")
        tally.places[problem.id] = f"line {number}"
        own = {
            "prompt": asked(problem.prompt, spec),
            # A tab or form feed at its beginning is a lost backslash, and is found later.
            "answer": problem.answer.rstrip().lstrip(" \n"),
            "topic": problem.topic.strip(),
            "verifier": problem.verifier or spec.verifier,
        }
        yield problem.model_copy(update=own)


@dataclass(frozen=True)
class Stream:
    """Distinct problems in random order, and their number."""

    name: str
    problems: Iterator[Problem]
    usable: int | None = None  # None if not known in advance


Source = tuple[list[Stream], list[Origin]]


def read_source(spec: DataSpec, tally: Tally, limit: PromptLimit | None = None) -> Source:
    """The streams of a spec's source, and its origins.

    Counts omitted rows and prompts over `limit` in `tally`. Raises InvalidSettings or
    InvalidProblems, naming the key or column.
    """
    if spec.source == "reasoning-gym":
        return _tasks(spec, limit)
    if spec.source == "jsonl":
        return _jsonl(spec, tally, limit)
    return _hub_sets(spec, HUB_SETS[spec.source], tally, limit)


def _tasks(spec: DataSpec, limit: PromptLimit | None) -> Source:
    streams = []
    seen: set[str] = set()
    for name, settings in spec.tasks.items():
        task = TaskSpec(name, settings, spec.seed)
        streams.append(Stream(name, _task_problems(task, spec, limit, seen)))
    library = Origin(name="reasoning-gym", revision=version("reasoning-gym"))
    return streams, [library]


def _task_problems(
    task: TaskSpec, spec: DataSpec, limit: PromptLimit | None, seen: set[str]
) -> Iterator[Problem]:
    def short(question: str) -> bool:
        return limit is None or limit.count(ask(question, spec)) <= limit.max_tokens

    for record in task.unique(spec.half, short):
        prompt = ask(record["prompt"], spec)
        # Two tasks can generate the same prompt.
        if prompt not in seen:
            seen.add(prompt)
            yield Problem(**{**record, "prompt": prompt})


def _jsonl(spec: DataSpec, tally: Tally, limit: PromptLimit | None) -> Source:
    assert spec.from_ is not None  # the spec requires it
    read = list(_short(jsonl_problems(spec.from_, spec, tally), tally, limit))
    for verifier in sorted({problem.verifier for problem in read if problem.verifier}):
        check_usable(verifier)
    ids = Counter(problem.id for problem in read)
    if ids and (commonest := ids.most_common(1)[0])[1] > 1:
        raise InvalidProblems(f"{spec.from_}: id {commonest[0]!r} occurs {commonest[1]} times.")
    distinct = unique(read, tally, lambda problem: " ".join(problem.text.split()))
    if not distinct:
        raise InvalidProblems(f"from: {spec.from_} has no usable problem.")
    stream = Stream("jsonl", _shuffled(distinct, spec.seed, "jsonl"), len(distinct))
    return [stream], file_origins(spec.from_)


def _hub_sets(
    spec: DataSpec, sets: Sequence[HubSet], tally: Tally, limit: PromptLimit | None
) -> Source:
    read: list[Problem] = []
    loaded, origins = tables(spec, sets)
    with progress_bar() as progress:
        task = progress.add_task("reading rows", total=sum(map(len, loaded)))
        for hub_set in sets:
            faults = Tally()
            files = [table for table in loaded if table.hub_set is hub_set]
            for table in files:
                read += _short(_problems(table, spec, faults), faults, limit)
                progress.advance(task, len(table))
            # Check each set by itself, because a large one would hide a small one that is broken.
            faults.check(hub_set.name, sum(map(len, files)))
            tally.places |= faults.places
            for omission in faults.reasons.values():
                tally.merge(omission)
    # Sort, so that the split does not depend on how the rows are spread over files.
    read.sort(key=lambda p: (p.id, p.text, p.answer, p.topic))
    problems = unique(read, tally, lambda problem: problem.id.rpartition("-")[2])
    streams = []
    for hub_set in sets:
        subset = [problem for problem in problems if problem.id.startswith(f"{hub_set.name}-")]
        shuffled = _shuffled(subset, spec.seed, hub_set.name)
        streams.append(Stream(hub_set.name, shuffled, len(subset)))
    return streams, origins


def _problems(table: SourceTable, spec: DataSpec, tally: Tally) -> Iterator[Problem]:
    hub_set = table.hub_set
    for where, row in table:
        try:
            problem = hub_set.read(row, spec).problem(hub_set.name, hub_set.verifier)
            tally.places.setdefault(problem.id, where)
            yield problem
        except Unusable as error:
            tally.add(error.reason, where, error.fault)


def _short(
    problems: Iterable[Problem], tally: Tally, limit: PromptLimit | None
) -> Iterator[Problem]:
    """The problems whose prompts are within the limit."""
    for problem in problems:
        if limit is not None and limit.tokens(problem, tally.place(problem)) > limit.max_tokens:
            tally.add(f"a prompt of more than {limit.max_tokens} tokens", problem.id, fault=False)
        else:
            yield problem


def _shuffled(problems: Sequence[Problem], seed: int, name: str) -> Iterator[Problem]:
    order = rng_for("data", seed, "order", name).permutation(len(problems))
    return (problems[index] for index in order.tolist())

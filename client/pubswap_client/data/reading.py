"""Streams of a split's problems, in random order."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from pubswap_client.data.examples import Tally, Unusable, ask, unique
from pubswap_client.data.loading import SourceTable, tables
from pubswap_client.data.manifest import Origin, file_origins
from pubswap_client.data.sources import HUB_SETS, HubSet
from pubswap_client.data.spec import DataSpec
from pubswap_client.data.tasks import TaskSpec
from pubswap_protocol.command_line.progress_bar import progress_bar
from pubswap_protocol.draws import rng_for
from pubswap_protocol.errors import InvalidProblems, first_fault
from pubswap_protocol.problems import Problem, PromptLimit, is_blank, read_jsonl
from pubswap_protocol.verifiers import check_usable

_MAX_PLAIN = 20
_ROW = TypeAdapter(dict[str, Any])


def jsonl_problems(path: Path, spec: DataSpec, tally: Tally) -> Iterator[Problem]:
    """The problems of the file, in order; keeps `id`, `verifier` and `metadata` if present.

    Their lines are in `tally.places`.

    Raises InvalidProblems, naming the line and the column, for anything unusable, because the user
    can correct the file.
    """
    for number, line in read_jsonl(path):
        problem = _problem_of_line(line, number, f"{path}, line {number}", spec)
        tally.places[problem.id] = f"line {number}"
        yield problem


def _problem_of_line(line: str, number: int, where: str, spec: DataSpec) -> Problem:
    if not line.strip():
        raise InvalidProblems(f"{where}: the line is empty; remove it.")
    columns = {
        "prompt": spec.prompt_column,
        "answer": spec.answer_column,
        "topic": spec.topic_column,
    }
    try:
        row = _ROW.validate_json(line)
        values = {role: _value(row, column, role, where) for role, column in columns.items()}
        problem = Problem(
            id=str(row.get("id", f"line-{number}")),
            verifier=row.get("verifier", spec.verifier),
            metadata=row.get("metadata", {}),
            **values,
        )
    except ValidationError as error:
        raise InvalidProblems(f"{where}: {first_fault(error)}.") from None
    if is_blank(problem.answer):
        raise InvalidProblems(f"{where}: answer: it is empty. Add the answer, or remove the line.")
    return problem.model_copy(update={"prompt": ask(problem.prompt, spec)})


def _value(row: dict[str, Any], column: str, role: str, where: str) -> Any:
    if column not in row:
        raise InvalidProblems(
            f"{role}_column: {where} has no column {column!r}. It has {', '.join(row) or 'none'}; "
            f"name one with --{role}-column."
        )
    value = row[column]
    # An answer may be a number or true in the file, but a response is compared with its text.
    if isinstance(value, int | float) and role != "prompt":
        value = _written(value)
    if not isinstance(value, str):
        return value
    # A tab or form feed at the beginning of an answer is a lost backslash, and is found later.
    return value.rstrip().lstrip(" \n") if role == "answer" else value.strip()


def _written(value: float) -> str:
    """A number as responses write it: 0.00003 or 3.0e-36, where JSON has 3e-05 and 3e-36."""
    mantissa, power, exponent = json.dumps(value).partition("e")
    if not power or isinstance(value, bool):
        return json.dumps(value)
    plain = f"{Decimal(mantissa).scaleb(int(exponent)):f}"
    if len(plain) <= _MAX_PLAIN:
        return plain
    return f"{mantissa}{'' if '.' in mantissa else '.0'}e{int(exponent)}"


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
        return limit is None or limit.fits(ask(question, spec))

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
    distinct = unique(read, tally, lambda problem: " ".join(problem.prompt.split()))
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
    read.sort(key=lambda p: (p.id, p.prompt, p.answer, p.topic))
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
        if limit is not None and not limit.fits(problem.prompt):
            tally.add(f"a prompt of more than {limit.max_tokens} tokens", problem.id, fault=False)
        else:
            yield problem


def _shuffled(problems: Sequence[Problem], seed: int, name: str) -> Iterator[Problem]:
    order = rng_for("data", seed, "order", name).permutation(len(problems))
    return (problems[index] for index in order.tolist())

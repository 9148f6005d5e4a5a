"""Checks of a verifier on problems: what it pays, whether it repeats itself, how long it takes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from statistics import fmean, median

from pydantic import Field, ValidationError

from pubswap_client.doctor.findings import Finding, failure, ok, skipped
from pubswap_protocol.bounds import VERIFIER_SECONDS, Strict
from pubswap_protocol.command_line.amounts import first_few
from pubswap_protocol.errors import InvalidProblems, fault_text
from pubswap_protocol.problems import Problem, read_jsonl
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.verifiers import VerifierPool, verifier_for
from pubswap_protocol.verifiers.confined.worker import Scored
from pubswap_protocol.verifiers.registry import judge_of
from pubswap_protocol.verifiers.verifier import Verifier

MOST = 1000  # problems that are tried
WORKERS = 4
_HOPELESS = 5  # responses that are cut off before the check gives up

Case = tuple[str, Problem]
Judging = Callable[[VerifierPool, Sequence[Case], str], list[Scored]]


@dataclass(frozen=True)
class Cases:
    """The responses to try: right ones, empty ones, and right ones to other problems."""

    golds: list[Case]
    empty: list[Case]
    others: list[Case]
    lines: Mapping[str, int] = field(default_factory=dict)  # of problems in their file, by id

    @property
    def all(self) -> list[Case]:
        return [*self.golds, *self.empty, *self.others]

    def listed(self, cases: Iterable[Case]) -> str:
        return first_few(f"line {self.lines[each.id]} ({each.id})" for _, each in cases)


def cases_of(problems: Sequence[Problem], verifier: Verifier) -> Cases:
    """The cases of problems, from the first line of their file, that do not name another verifier.

    Raises InvalidProblems if all do, or the metadata of one is wrong.
    """
    own = [problem for problem in problems if judge_of(problem, verifier) == verifier]
    if not own:
        raise InvalidProblems(
            f"Each problem names another verifier than {verifier}, such as {problems[0].verifier}. "
            'Remove "verifier" from the lines, or test that one.'
        )
    step = -(-len(own) // MOST)
    golds = [(verifier_for(p, verifier).right_response(p), p) for p in own[::step]]
    return Cases(
        golds=golds,
        empty=[("", problem) for _, problem in golds],
        others=[(other, p) for n, (_, p) in enumerate(golds) if (other := _other(golds, n))],
        lines={problem.id: line for line, problem in enumerate(problems, start=1)},
    )


def _other(golds: Sequence[Case], number: int) -> str | None:
    """The right response of the next problem that has another answer, if there is one."""
    right, problem = golds[number]
    following = chain(golds[number + 1 :], golds[:number])
    differing = (text for text, p in following if text != right and p.answer != problem.answer)
    return next(differing, None)


def pool_of(workers: int = 1) -> VerifierPool:
    """A pool as a member's, which also runs plug-ins where the sandbox is not whole."""
    return VerifierPool(workers, unconfined=True)


def findings(cases: Cases, settings: RunSettings, judge: Judging) -> dict[str, Finding]:
    """The findings by what was checked."""
    with pool_of() as pool:
        first = judge(pool, cases.all, "Scoring")
    if len(first) < len(cases.all):
        return {"time": _time(cases, first)}
    with pool_of() as pool:
        again = judge(pool, cases.all[::-1], "Scoring again, from the last to the first")[::-1]
    with pool_of(WORKERS) as pool:
        several = judge(pool, cases.all, f"Scoring with {WORKERS} workers")
    scored = iter(first)
    golds, empty, others = (
        [(case, next(scored)) for case in part] for part in (cases.golds, cases.empty, cases.others)
    )
    return {
        "reference answers": _golds(cases, golds),
        "empty responses": _empty(cases, empty),
        "other problems' answers": _others(cases, others, settings),
        "the same again, in another order": _same(cases, first, again),
        f"the same with {WORKERS} workers": _same(cases, first, several),
        "time": _time(cases, first),
    }


Judged = list[tuple[Case, Scored]]


def _golds(cases: Cases, judged: Judged) -> Finding:
    wrong = [case for case, scored in judged if scored.score != 1.0]
    if not wrong:
        return ok(f"all {len(judged)} score 1")
    return failure(
        f"{len(wrong)} of {len(judged)} score less than 1: {cases.listed(wrong)}{_faults(judged)}",
        "Write these answers as the verifier reads them, or correct the verifier.",
    )


def _faults(judged: Judged) -> str:
    """The first fault of the verifier, if it has any."""
    first = next((scored.fault for _, scored in judged if scored.fault), None)
    return f"; it {first}" if first else ""


def _empty(cases: Cases, judged: Judged) -> Finding:
    paid = [case for case, scored in judged if scored.score]
    if not paid:
        return ok(f"all {len(judged)} score 0")
    return failure(
        f"{len(paid)} of {len(judged)} score more than 0: {cases.listed(paid)}",
        "Correct the verifier: a policy learns to say nothing.",
    )


def _others(cases: Cases, judged: Judged, settings: RunSettings) -> Finding:
    if not judged:
        return skipped("problems with different answers")
    correct = [case for case, scored in judged if settings.is_correct(scored.score)]
    paid = [case for case, scored in judged if scored.score and case not in correct]
    partly = ""
    if paid:
        mean = fmean(scored.score for _, scored in judged)
        partly = f"; {len(paid)} are paid in part ({mean:.2f} on average): {cases.listed(paid)}"
    if not correct:
        return ok(f"none of {len(judged)} is correct{partly}")
    return failure(
        f"{len(correct)} of {len(judged)} are correct: {cases.listed(correct)}{partly}",
        "Compare these problems with the ones after them, and make the verifier stricter.",
    )


def _same(cases: Cases, first: Sequence[Scored], again: Sequence[Scored]) -> Finding:
    pairs = zip(cases.all, first, again, strict=True)
    differing = [case for case, a, b in pairs if (a.score, a.parts) != (b.score, b.parts)]
    if not differing:
        return ok(f"{len(first)} scores are the same")
    return failure(
        f"{len(differing)} of {len(first)} scores differ: {cases.listed(differing)}",
        "Correct the verifier: its score may depend on nothing but the response and the problem.",
    )


def _time(cases: Cases, first: Sequence[Scored]) -> Finding:
    cut = [case for case, scored in zip(cases.all, first, strict=False) if scored.cut_off]
    if not cut:
        seconds = [scored.seconds for scored in first]
        worst = f"{_text(max(seconds))} of {VERIFIER_SECONDS:g} s"
        return ok(f"median {_text(median(seconds))}, worst {worst}")
    return failure(
        f"{len(cut)} of {len(first)} hung, or ended their process, and score 0: "
        f"{cases.listed(cut)}",
        f"Make the verifier end within {VERIFIER_SECONDS:g} s of CPU time for any response.",
    )


def _text(seconds: float) -> str:
    milliseconds = f"{1000 * seconds:.0f} ms" if seconds >= 0.001 else "under 1 ms"
    return milliseconds if seconds < 1 else f"{seconds:.1f} s"


class ResponseLine(Strict):
    """One line of a file of responses."""

    id: str = Field(min_length=1)
    response: str


def read_responses(path: Path, problems: Sequence[Problem]) -> list[Case]:
    """The responses of a JSONL file, each with its problem.

    Raises InvalidProblems, naming the line, if it has none, a wrong one, or one to no problem.
    """
    by_id = {problem.id: problem for problem in problems}
    cases = []
    for number, line in read_jsonl(path):
        try:
            answered = ResponseLine.model_validate_json(line)
        except ValidationError as error:
            raise InvalidProblems(
                f"{path}, line {number}: {fault_text(error.errors()[0])}. "
                'A line looks like {"id": "1", "response": "4"}.'
            ) from None
        if answered.id not in by_id:
            raise InvalidProblems(
                f"{path}, line {number}: no problem has the id {answered.id!r}. Take the ids of "
                "the problems in --data."
            )
        cases.append((answered.response, by_id[answered.id]))
    if not cases:
        raise InvalidProblems(f"{path} has no responses.")
    return cases


def given_up(scored: Sequence[Scored]) -> bool:
    """Whether so many responses were cut off that the others would take hours."""
    return sum(each.cut_off for each in scored) >= _HOPELESS

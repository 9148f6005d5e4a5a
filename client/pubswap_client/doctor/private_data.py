"""Checks of the private problems, line by line, to find every fault and not only the first.

Findings name line numbers and ids, never a prompt or an answer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pubswap_client.data.fault_list import fault_list, write_fault_list
from pubswap_client.data.golds import (
    Fault,
    Score,
    contradictions,
    text_faults,
    too_long,
    unread,
)
from pubswap_client.data.holdout import split
from pubswap_client.doctor.findings import Finding, failure, ok, skipped, warning
from pubswap_protocol.command_line.amounts import first_few
from pubswap_protocol.errors import InvalidProblems, InvalidSettings, NotSaved
from pubswap_protocol.problems import Problem, parse_problem, read_jsonl
from pubswap_protocol.prompts import Prompt
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.verifiers import check_usable
from pubswap_protocol.verifiers.confined.sandbox import available
from pubswap_protocol.verifiers.registry import Given


@dataclass(frozen=True)
class Survey:
    """A problem file: its usable problems, and the faults of the rest."""

    path: Path
    problems: tuple[Problem, ...]
    faults: tuple[str, ...]  # of lines that are not problems
    repeated: tuple[str, ...]  # `line 7 (id)` for an id that occurred before
    places: Mapping[str, str]  # such as "line 7", by id


def survey(path: Path) -> Survey:
    """Read a whole file; raises InvalidProblems if that is impossible."""
    problems, faults, repeated = [], [], []
    places: dict[str, str] = {}
    for number, line in read_jsonl(path):
        try:
            problem = parse_problem(line, f"line {number}")
        except InvalidProblems as error:
            faults.append(error.detail)
            continue
        if problem.id in places:
            repeated.append(f"line {number} ({problem.id})")
            continue
        places[problem.id] = f"line {number}"
        problems.append(problem)
    return Survey(path, tuple(problems), tuple(faults), tuple(repeated), places)


def check_file(file: Survey) -> Finding:
    """Check that every line is a problem, and that no id and no prompt occurs twice."""
    if file.faults:
        return failure(
            f"{len(file.faults)} lines of {file.path} are not problems: {file.faults[0]}",
            f"Correct {first_few(fault.partition(':')[0] for fault in file.faults)}.",
        )
    if file.repeated:
        return failure(
            f"{len(file.repeated)} ids occur twice: {first_few(file.repeated)}",
            "Give each problem an id of its own, or remove the second ones.",
        )
    if contradicted := contradictions(file.problems):
        return failure(
            f"{len(contradicted)} problems have the prompt of another and a different answer: "
            f"{first_few(fault.problem.id for fault in contradicted)}",
            "One of the answers is wrong, and is rewarded. Correct it, or remove these problems.",
        )
    prompts: dict[Prompt, str] = {}
    copies = [
        f"{problem.id} of {first}"
        for problem in file.problems
        if (first := prompts.setdefault(problem.prompt, problem.id)) != problem.id
    ]
    if copies:
        return warning(
            f"{len(copies)} problems have the prompt of another: {first_few(copies)}",
            "Remove the copies. Each is trained on as often as the first, so that differential "
            "privacy (privacy.epsilon) protects that prompt half as well.",
        )
    return ok(f"{file.path} is readable")


def check_count(file: Survey, run: RunSettings, holdout: int = 0) -> Finding:
    """Check that there are enough problems for a step."""
    trained, held_out = split(file.problems, holdout)
    count, needed = len(trained), run.grpo.prompts_per_step
    besides = f" to train on, {len(held_out)} held out" if held_out else ""
    text = f"{count} problems{besides}; a step takes {needed}"
    if count < needed:
        advice = f"Add problems until there are {needed}, better hundreds, to {file.path}."
        return failure(text, advice)
    if count < 4 * needed:
        return warning(text, "Training works, but sees the same problems in nearly every step.")
    return ok(text)


SERIOUS_SHARE = 0.05
_CHUNK = 32


def check_verifiers(problems: Sequence[Problem], default: Given) -> tuple[Finding, list[Problem]]:
    """Check that every named verifier exists; returns the problems whose verifier does.

    `default` is the run's verifier.
    """
    names = {problem.verifier or default for problem in problems}
    faults = {name: fault for name in names if (fault := _fault(name))}
    usable = [problem for problem in problems if (problem.verifier or default) not in faults]
    if faults:
        bad = [problem.id for problem in problems if (problem.verifier or default) in faults]
        return failure(
            f"{len(bad)} problems name one that does not exist: {first_few(bad)}. "
            + " ".join(faults.values()),
            'Correct "verifier" in these lines, or leave it out to take the run\'s.',
        ), usable
    return ok(first_few(sorted(map(str, names)))), usable


def check_sandbox() -> Finding:
    """Check that processes that score responses are confined."""
    lacking = available().lacking
    if lacking is None:
        return ok("responses are scored without network, processes, and files but Python's")
    return warning(
        f"this machine has no {lacking}, so limits on time and memory are all that there is",
        "PubSwap's own verifiers run. One of an installed package runs only if policy.toml has "
        "unconfined_verifiers = true.",
    )


def check_answers(
    problems: Sequence[Problem],
    total: int,
    default: Given,
    score: Score,
    advance: Callable[[int], None],
) -> tuple[Finding, list[Fault]]:
    """Check that verifiers read the answers of these problems, from a set of `total`, correctly.

    Returns the unusable ones, too.
    """
    bad, count = list[Fault](), len(problems)
    for chunk in (problems[start : start + _CHUNK] for start in range(0, count, _CHUNK)):
        bad += unread(chunk, default, score)
        advance(len(chunk))
    if not count:
        return skipped("a problem with a verifier that is known"), bad
    part = f"{count} of {total}" if count < total else f"all {total}"
    if not bad:
        return ok(f"each is read by its own verifier (checked {part})"), bad
    serious = len(bad) > SERIOUS_SHARE * count
    named = first_few(fault.problem.id for fault in bad)
    return (failure if serious else warning)(
        f"{len(bad)} are not read by their own verifier: {named} (checked {part}). {_reasons(bad)}",
        "Right responses to them are not rewarded, or wrong ones are. Write the answer as the "
        "verifier reads it (math: an expression; choice: one letter; exact: the text after "
        '"Answer:"; reasoning_gym: with the metadata of its task), or remove them.',
    ), bad


def check_texts(problems: Sequence[Problem], default: Given) -> tuple[Finding, list[Fault]]:
    """Check the text of every answer, which takes no verifier. Returns the unusable ones, too."""
    faults = text_faults(problems, default)
    if not faults:
        return ok(f"none of {len(problems)} is blank, broken or a worked solution"), faults
    serious = len(faults) > SERIOUS_SHARE * len(problems)
    return (failure if serious else warning)(
        f"{len(faults)} of {len(problems)} answers can be earned by no response. "
        f"{_reasons(faults)}",
        "Write the result alone as the answer, or remove these problems.",
    ), faults


def check_answer_lengths(
    problems: Sequence[Problem], run: RunSettings, length: Callable[[str], int]
) -> Finding:
    """Check that a response has room for each reference answer."""
    most = run.grpo.max_response_tokens
    faults = too_long(problems, most, length)
    if not faults:
        return ok(f"none over the {most} tokens of a response")
    ids = first_few(fault.problem.id for fault in faults)
    return warning(
        f"{len(faults)} of {len(problems)} do not fit in a response of {most} tokens: {ids}",
        "No response with such an answer can be right. Ask the operator for more "
        "grpo.max_response_tokens, or shorten or remove these answers.",
    )


def check_listed(file: Survey, faults: Sequence[Fault]) -> Finding:
    """List all unusable answers in a file beside the data; remove an earlier list if none is."""
    listing = fault_list(file.path)
    faults = [*contradictions(file.problems), *faults]
    try:
        write_fault_list(listing, faults, file.places)
    except NotSaved as error:
        return warning(f"they could not be listed: {error.detail}", "Make the folder writable.")
    if not faults:
        return ok("there is nothing to list")
    return warning(
        f"{listing} lists all that were found, with lines, answers and reasons",
        "Correct them as docs/data.md says for each reason. The list is as private as the data.",
    )


def _reasons(faults: Sequence[Fault]) -> str:
    """Each reason with its verifier and problems."""
    ids: dict[str, list[str]] = {}
    for fault in faults:
        ids.setdefault(f"{fault.verifier}: {fault.reason}", []).append(fault.problem.id)
    return "; ".join(f"{reason} ({first_few(bad)})" for reason, bad in ids.items())


def _fault(name: Given) -> str | None:
    try:
        check_usable(name)
    except InvalidSettings as error:
        return error.detail
    return None

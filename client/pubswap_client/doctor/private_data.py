"""Checks of the private problems: every fault, and not only the first.

Findings name line numbers and ids, never a prompt or an answer.
"""

from collections.abc import Callable, Sequence

from pubswap_client.daemon.own_settings import own_settings
from pubswap_client.data.drawing import sample
from pubswap_client.data.fault_list import fault_list, write_fault_list
from pubswap_client.data.golds import Fault, contradictions, text_faults, too_long, unread
from pubswap_client.data.holdout import split
from pubswap_client.doctor.facts import Facts
from pubswap_client.doctor.findings import Finding, failure, ok, skipped, warning
from pubswap_client.doctor.model import SAMPLE
from pubswap_client.doctor.problem_file import ProblemFile
from pubswap_protocol.command_line.amounts import first_few
from pubswap_protocol.errors import InvalidSettings, NotSaved
from pubswap_protocol.prompts import Prompt
from pubswap_protocol.verifiers import check_usable
from pubswap_protocol.verifiers.confined.sandbox import available
from pubswap_protocol.verifiers.registry import Given

_DATA_AND_RUN = skipped("private data and the run")


def check_file(facts: Facts) -> Finding:
    """Check that every line is a problem, and that no id and no prompt occurs twice."""
    path = facts.settings.data
    if path is None:
        advice = "Give their file: --data private.jsonl."
        return failure("no private problems are given", advice)
    facts.stage("reading the private problems")
    file = facts.file = ProblemFile.read(path)
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


def check_count(facts: Facts) -> Finding:
    """Check that there are enough problems for a step."""
    if facts.file is None or facts.run is None:
        return _DATA_AND_RUN
    own = own_settings(facts.settings, facts.run.settings)
    trained, held_out = split(facts.file.problems, facts.settings.holdout)
    count, needed = len(trained), own.grpo.prompts_per_step
    besides = f" to train on, {len(held_out)} held out" if held_out else ""
    text = f"{count} problems{besides}; a step takes {needed}"
    if count < needed:
        advice = f"Add problems until there are {needed}, better hundreds, to {facts.file.path}."
        return failure(text, advice)
    if count < 4 * needed:
        return warning(text, "Training works, but sees the same problems in nearly every step.")
    return ok(text)


def check_prompt_lengths(facts: Facts) -> Finding:
    """Check that no prompt exceeds the run's limit; raises InvalidProblems with a list."""
    if facts.file is None or facts.tokenizer is None or facts.run is None:
        return skipped("private data and a tokenizer")
    facts.stage("measuring prompts")
    limit = facts.tokenizer.limit(facts.run.settings)
    limit.check(facts.file.problems, str(facts.file.path))
    facts.fitting = True
    return ok(f"none over the limit of {limit.max_tokens} tokens")


SERIOUS_SHARE = 0.05
_CHUNK = 32


def check_verifiers(facts: Facts) -> Finding:
    """Check that every named verifier exists."""
    if facts.file is None or facts.run is None:
        return _DATA_AND_RUN
    problems, default = facts.file.problems, facts.run.settings.verifier
    names = {problem.verifier or default for problem in problems}
    faults = {name: fault for name in names if (fault := _fault(name))}
    facts.usable = [each for each in problems if (each.verifier or default) not in faults]
    if faults:
        bad = [problem.id for problem in problems if (problem.verifier or default) in faults]
        return failure(
            f"{len(bad)} problems name one that does not exist: {first_few(bad)}. "
            + " ".join(faults.values()),
            'Correct "verifier" in these lines, or leave it out to take the run\'s.',
        )
    return ok(first_few(sorted(map(str, names))))


def check_sandbox(_: Facts) -> Finding:
    """Check that processes that score responses are confined."""
    lacking = available().lacking
    if lacking is None:
        return ok("responses are scored without network, processes, and files but Python's")
    return warning(
        f"this machine has no {lacking}, so limits on time and memory are all that there is",
        "PubSwap's own verifiers run. One of an installed package runs only if policy.toml has "
        "unconfined_verifiers = true.",
    )


def check_answers(facts: Facts) -> Finding:
    """Check that verifiers read the answers of a sample of the problems correctly."""
    if facts.file is None or facts.usable is None or facts.run is None:
        return _DATA_AND_RUN
    problems, total = sample(facts.usable, SAMPLE, "doctor"), len(facts.file.problems)
    bad, count = list[Fault](), len(problems)
    task = facts.stage("verifying the problems' own answers", count)
    for start in range(0, count, _CHUNK):
        chunk = problems[start : start + _CHUNK]
        bad += unread(chunk, facts.run.settings.verifier, facts.pool.score_many)
        facts.progress.advance(task, len(chunk))
    facts.unread = bad
    if not count:
        return skipped("a problem with a verifier that is known")
    part = f"{count} of {total}" if count < total else f"all {total}"
    if not bad:
        return ok(f"each is read by its own verifier (checked {part})")
    named = first_few(fault.problem.id for fault in bad)
    return _failure_or_warning(len(bad), count)(
        f"{len(bad)} are not read by their own verifier: {named} (checked {part}). {_reasons(bad)}",
        "Right responses to them are not rewarded, or wrong ones are. Write the answer as the "
        "verifier reads it (math: an expression; choice: one letter; exact: the text after "
        '"Answer:"; reasoning_gym: with the metadata of its task), or remove them.',
    )


def check_texts(facts: Facts) -> Finding:
    """Check the text of every answer, which takes no verifier."""
    if facts.usable is None or facts.run is None:
        return _DATA_AND_RUN
    problems = facts.usable
    faults = facts.broken = text_faults(problems, facts.run.settings.verifier)
    if not faults:
        return ok(f"none of {len(problems)} is blank, broken or a worked solution")
    return _failure_or_warning(len(faults), len(problems))(
        f"{len(faults)} of {len(problems)} answers can be earned by no response. "
        f"{_reasons(faults)}",
        "Write the result alone as the answer, or remove these problems.",
    )


def check_answer_lengths(facts: Facts) -> Finding:
    """Check that a response has room for each reference answer."""
    if facts.usable is None or facts.run is None or facts.tokenizer is None:
        return skipped("private data, the run and a tokenizer")
    problems, most = facts.usable, facts.run.settings.grpo.max_response_tokens
    faults = too_long(problems, most, facts.tokenizer.response_length)
    if not faults:
        return ok(f"none over the {most} tokens of a response")
    ids = first_few(fault.problem.id for fault in faults)
    return warning(
        f"{len(faults)} of {len(problems)} do not fit in a response of {most} tokens: {ids}",
        "No response with such an answer can be right. Ask the operator for more "
        "grpo.max_response_tokens, or shorten or remove these answers.",
    )


def check_listed(facts: Facts) -> Finding:
    """List all unusable answers in a file beside the data; remove an earlier list if none is."""
    file = facts.file
    if file is None or facts.broken is None or facts.unread is None:
        return _DATA_AND_RUN
    listing = fault_list(file.path)
    faults = [*contradictions(file.problems), *facts.broken, *facts.unread]
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


def _failure_or_warning(bad: int, total: int) -> Callable[[str, str], Finding]:
    return failure if bad > SERIOUS_SHARE * total else warning


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

"""Checks of the private problems.

Findings name line numbers and ids, never a prompt or an answer.
"""

from collections.abc import Iterable, Iterator

from pubswap_client.daemon.own_settings import own_settings, trained_problems
from pubswap_client.data.drawing import sample
from pubswap_client.data.fault_list import fault_list, write_fault_list
from pubswap_client.data.golds import Fault, contradictions, text_faults, unread
from pubswap_client.doctor.facts import Facts
from pubswap_client.doctor.findings import Finding, failure, ok, skipped, warning
from pubswap_protocol.command_line.amounts import first_few
from pubswap_protocol.errors import NotSaved
from pubswap_protocol.problems import Problem, read_problems
from pubswap_protocol.prompts import Prompt
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.verifiers import check_usable
from pubswap_protocol.verifiers.confined.sandbox import available

SAMPLE = 1000  # problems, enough to show a fault that many have
SERIOUS_SHARE = 0.05
_CHUNK = 32
_DATA_AND_RUN = skipped("private data and the run")


def check_file(facts: Facts) -> Finding:
    """Check that each line is a problem with an id of its own, and that no prompt occurs twice."""
    path = facts.settings.data
    if path is None:
        return failure("no private problems are given", "Give their file: --data private.jsonl.")
    facts.stage("reading the private problems")
    problems = facts.problems = read_problems(path)
    prompts: dict[Prompt, str] = {}
    copies = [
        f"{problem.id} of {first}"
        for problem in problems
        if (first := prompts.setdefault(problem.prompt, problem.id)) != problem.id
    ]
    if copies:
        return warning(
            f"{len(copies)} problems have the prompt of another: {first_few(copies)}",
            "Remove the copies. Each is trained on as often as the first, so that differential "
            "privacy (privacy.epsilon) protects that prompt half as well.",
        )
    return ok(f"{path} is readable")


def check_count(facts: Facts) -> Finding:
    """Check that there are enough problems for a step, as a start does."""
    if facts.problems is None or facts.run is None:
        return _DATA_AND_RUN
    trained, held_out = trained_problems(facts.problems, facts.settings, facts.run.settings)
    own = own_settings(facts.settings, facts.run.settings)
    count, needed = len(trained), own.grpo.prompts_per_step
    besides = f" to train on, {len(held_out)} held out" if held_out else ""
    text = f"{count} problems{besides}; a step takes {needed}"
    if count < 4 * needed:
        return warning(text, "Training works, but sees the same problems in nearly every step.")
    return ok(text)


def check_prompt_lengths(facts: Facts) -> Finding:
    """Check that no prompt exceeds the run's limit; raises InvalidProblems with a list."""
    if facts.problems is None or facts.tokenizer is None or facts.run is None:
        return skipped("private data and a tokenizer")
    facts.stage("measuring prompts")
    limit = facts.tokenizer.limit(facts.run.settings)
    limit.check(facts.problems, str(facts.settings.data))
    return ok(f"none over the limit of {limit.max_tokens} tokens")


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
    """Check that right responses can earn the reference answers, and list those that none can.

    The text of each answer is checked, and whether its verifier reads it for a sample. Raises
    InvalidSettings for a verifier that does not exist.
    """
    path, problems = facts.settings.data, facts.problems
    if path is None or problems is None or facts.run is None:
        return _DATA_AND_RUN
    run, tried = facts.run.settings, sample(problems, SAMPLE, "doctor")
    for verifier in {problem.verifier or run.verifier for problem in problems}:
        check_usable(verifier)
    faults = {fault.problem.id: fault for fault in _faults(facts, problems, tried, run)}
    part = f"{len(tried)} of {len(problems)}" if tried != problems else f"all {len(tried)}"
    listed = f"{fault_list(path)} lists them"
    try:
        places = {problem.id: f"line {line}" for line, problem in enumerate(problems, 1)}
        write_fault_list(fault_list(path), list(faults.values()), places)
    except NotSaved as error:
        listed = f"they could not be listed: {error.detail}"
    if not faults:
        return ok(f"each is read by its own verifier (checked {part})")
    bad = sum(problem.id in faults for problem in tried)
    return (failure if bad > SERIOUS_SHARE * len(tried) else warning)(
        f"{len(faults)} are unusable (checked {part}). {_reasons(faults.values())}; {listed}",
        "Right responses to them are not rewarded, or wrong ones are. Correct or remove them as "
        "docs/data.md says for each reason. The list is as private as the data.",
    )


def _faults(
    facts: Facts, problems: list[Problem], tried: list[Problem], run: RunSettings
) -> Iterator[Fault]:
    """All faults of the answers. Of a problem with several, the last says the most."""
    yield from contradictions(problems)
    task = facts.stage("verifying the problems' own answers", len(tried))
    for start in range(0, len(tried), _CHUNK):
        chunk = tried[start : start + _CHUNK]
        yield from unread(chunk, run.verifier, facts.pool.score_many)
        facts.progress.advance(task, len(chunk))
    yield from text_faults(problems, run.verifier)


def _reasons(faults: Iterable[Fault]) -> str:
    """Each reason with its verifier and problems."""
    ids: dict[str, list[str]] = {}
    for fault in faults:
        reason = f"{fault.verifier}: {fault.reason}" if fault.verifier else fault.reason
        ids.setdefault(reason, []).append(fault.problem.id)
    return "; ".join(f"{reason} ({first_few(bad)})" for reason, bad in ids.items())

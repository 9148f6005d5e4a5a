"""Does each problem's verifier read the problem's own answer?"""

from collections.abc import Iterable, Sequence

from pubswap_client.data.answers import Score, unread
from pubswap_client.doctor.finding import Finding, failure, named, ok, skipped, warning
from pubswap_protocol.draws import rng_for
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers import check_usable

VERIFIERS, ANSWERS = "verifiers", "answers"
SAMPLE = 1000
SERIOUS_SHARE = 0.05
_CHUNK = 32


def sample(problems: Sequence[Problem]) -> list[Problem]:
    """All problems, or a fixed random choice of 1,000 in their order."""
    if len(problems) <= SAMPLE:
        return list(problems)
    places = rng_for("doctor", len(problems)).choice(len(problems), SAMPLE, replace=False)
    return [problems[place] for place in sorted(places.tolist())]


def chunks(problems: Sequence[Problem]) -> list[Sequence[Problem]]:
    """The problems in the portions that are verified together."""
    return [problems[start : start + _CHUNK] for start in range(0, len(problems), _CHUNK)]


def check_verifiers(
    problems: Sequence[Problem], default: str | None
) -> tuple[Finding, list[Problem]]:
    """Every verifier that is named exists; returns the problems whose verifier is known and does.

    `default` is the run's verifier, None if the run is not known.
    """
    names = {problem.verifier or default for problem in problems} - {None}
    faults = {name: fault for name in names if name and (fault := _fault(name))}
    usable = [
        p for p in problems if (name := p.verifier or default) is not None and name not in faults
    ]
    if faults:
        bad = [problem.id for problem in problems if (problem.verifier or default) in faults]
        return failure(
            VERIFIERS,
            f"{len(bad)} problems name one that does not exist: {named(bad)}. "
            + " ".join(faults.values()),
            'Correct "verifier" in these lines, or leave it out to take the run\'s.',
        ), usable
    return ok(VERIFIERS, named(sorted(name for name in names if name)) or "none named"), usable


def check_answers(
    chunked: Iterable[Sequence[Problem]], total: int, default: str | None, score: Score
) -> Finding:
    """The answers of these chunks of a set of `total` problems are read as what they say."""
    bad, count = [], 0
    for chunk in chunked:
        count += len(chunk)
        bad += [problem.id for problem in unread(chunk, default, score)]
    if not count:
        return skipped(ANSWERS, "a problem with a verifier that is known")
    part = f"{count} of {total}" if count < total else f"all {total}"
    if not bad:
        return ok(ANSWERS, f"0 are not read by their own verifier (checked {part})")
    serious = len(bad) > SERIOUS_SHARE * count
    return (failure if serious else warning)(
        ANSWERS,
        f"{len(bad)} are not read by their own verifier: {named(bad)} (checked {part})",
        "Right responses to them are not rewarded, or wrong ones are. Write the answer as the "
        "verifier reads it (math: an expression; choice: one letter; exact: the text after "
        '"Answer:"; reasoning_gym: with the metadata of its task), or remove them.',
    )


def _fault(name: str) -> str | None:
    try:
        check_usable(name)
    except InvalidSettings as error:
        return error.detail
    return None

"""Separate members, the problems that the adapter was trained on, from others."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from pubswap_client.data.drawing import sample
from pubswap_client.data.holdout import split
from pubswap_client.state.history import RoundFigures
from pubswap_protocol.command_line.amounts import first_few
from pubswap_protocol.errors import InvalidProblems, InvalidSettings
from pubswap_protocol.messages import RoundSummary
from pubswap_protocol.problems import Problem, prompts_digest, read_problems
from pubswap_protocol.schedule import (
    private_position,
    private_prompts,
    public_step_number,
    update_order,
)
from pubswap_protocol.settings import RunSettings

log = logging.getLogger(__name__)

MIN_PROBLEMS, MAX_PROBLEMS = 10, 500
_GIVE_BOTH = "Give the problems that were trained on with --members, and others with --others."


def effective(
    history: Sequence[RoundFigures], rounds: Sequence[RoundSummary], last: int
) -> list[RoundFigures]:
    """The rounds that led to the adapter of round `last`: in time, and not undone.

    A round was undone by a rollback if the run's round began after another number of rollbacks. If
    the coordinator does not report that, or was restored from a backup, a round was also undone if
    it began from, or led to, another adapter than the run's.
    """
    adapters = {each.round: each.adapter for each in rounds}
    rollbacks = {each.round: each.rollbacks for each in rounds}
    begun = {(each.round, each.rollbacks): each.start for each in history}
    return [
        past
        for past in history
        if past.round <= last
        and not past.late
        and rollbacks.get(past.round) in (None, past.rollbacks)
        and adapters.get(past.round - 1) in (None, past.start)
        and begun.get((past.round + 1, past.rollbacks)) in (None, adapters.get(past.round))
    ]


def drawn(settings: RunSettings, client: str, size: int, rounds: Mapping[int, int]) -> set[int]:
    """Indices of the problems that a client's private steps have drawn.

    `rounds` gives the number of steps made in each, `settings` the client's own b, and `size` is
    the number of its private problems. Raises InvalidSettings if the run resamples, or draws with a
    secret, because those draws are not recorded.
    """
    if settings.grpo.resample:
        raise InvalidSettings(
            "The run replaces groups by fresh problems (grpo.resample), which are not recorded. "
            + _GIVE_BOTH
        )
    if settings.privacy is not None:
        raise InvalidSettings(
            "The run draws problems with a secret (privacy.epsilon), and they are not recorded. "
            + _GIVE_BOTH
        )
    return {
        index
        for round_, steps in rounds.items()
        for step in update_order(settings)[:steps]
        if public_step_number(settings, step) is None
        for index in private_prompts(
            settings,
            client,
            size,
            private_position(settings, round_, step),
            settings.grpo.prompts_per_step,
        )
    }


def of_run(
    data: Path,
    others: Path | None,
    settings: RunSettings,
    client: str,
    rounds: Sequence[RoundFigures],
    holdout: int = 0,
) -> tuple[list[Problem], list[Problem]]:
    """Members and others in a client's private file, by the run's own schedule.

    `settings` and `holdout` are the client's, `rounds` those that led to the adapter. Others are
    the problems that no step has drawn, including held-out ones, unless a file gives them.

    Raises InvalidSettings if the draws cannot be known, also because b was another one, and
    InvalidProblems if these rounds were trained on other problems.
    """
    if not rounds:
        raise InvalidSettings(
            "The state folder has no history of rounds that this adapter was trained in. "
            + _GIVE_BOTH
        )
    problems, held_out = split(read_problems(data), holdout)
    _check_trained(problems, rounds, data, settings.grpo.prompts_per_step)
    steps = {past.round: past.steps for past in rounds}
    indices = drawn(settings, client, len(problems), steps)
    members = [problem for index, problem in enumerate(problems) if index in indices]
    trained = {problem.prompt for problem in members}  # a prompt may occur twice
    rest = [problem for problem in problems if problem.prompt not in trained]
    return members, read_problems(others) if others else [*rest, *held_out]


def _check_trained(
    problems: Sequence[Problem], rounds: Sequence[RoundFigures], data: Path, per_step: int
) -> None:
    digests = {past.problems for past in rounds}
    if others := {past.prompts_per_step for past in rounds} - {None, per_step}:
        raise InvalidSettings(
            f"Some rounds were trained with prompts_per_step = {min(filter(None, others))}, and it "
            f"is {per_step} now, so that their draws are not known. Give the client.toml of "
            f"`pubswap client start`, if it was the same in all rounds. {_GIVE_BOTH}"
        )
    if digests - {None, prompts_digest(problems)}:
        raise InvalidProblems(
            f"The run was trained on other problems than {data}, in another order, or with another "
            f"holdout. Give the file and the client.toml of `pubswap client start`. {_GIVE_BOTH}"
        )
    if None in digests:
        log.warning(
            "An earlier version of PubSwap trained and did not record its problems: make sure that "
            "%s, and the holdout, are those of `pubswap client start`.",
            data,
        )


def checked(
    members: Sequence[Problem], others: Sequence[Problem]
) -> tuple[list[Problem], list[Problem]]:
    """At most 500 of each, drawn at random; raises InvalidProblems if they cannot be compared."""
    trained = {problem.prompt for problem in members}
    both = [problem.id for problem in others if problem.prompt in trained]
    if both:
        raise InvalidProblems(
            f"{len(both)} of the others were trained on as well: {first_few(both, 3)}. "
            "Leave them out."
        )
    if len(members) < MIN_PROBLEMS:
        raise InvalidProblems(
            f"{len(members)} problems were trained on; the audit needs at least {MIN_PROBLEMS}."
        )
    if len(others) < MIN_PROBLEMS:
        raise InvalidProblems(
            f"{len(others)} problems were not trained on; the audit needs at least {MIN_PROBLEMS}, "
            "better hundreds. Give some of the same kind, from no run, with --others."
        )
    return sample(members, MAX_PROBLEMS, "audit", "members"), sample(
        others, MAX_PROBLEMS, "audit", "others"
    )

"""Members and others by the run's schedule, and sets that cannot be compared."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pubswap_client.daemon.own_settings import own_settings
from pubswap_client.data.holdout import split
from pubswap_client.policy.policy import Policy
from pubswap_client.privacy.problem_sets import (
    MAX_PROBLEMS,
    MIN_PROBLEMS,
    checked,
    drawn,
    effective,
    of_run,
)
from pubswap_client.rollout.transformers_engine import TransformersEngine
from pubswap_client.settings import ClientSettings
from pubswap_client.state.history import RoundFigures
from pubswap_client.training import trainer as training
from pubswap_client.training.memory import TokenBudget
from pubswap_client.training.update import UpdateContext
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import InvalidProblems, InvalidSettings
from pubswap_protocol.messages import RoundSummary
from pubswap_protocol.problems import Problem, prompts_digest, write_problems
from pubswap_protocol.settings import PrivacySettings, RunSettings
from pubswap_protocol.tensors.adapter import initial_adapter


def numbered(first: int, count: int) -> list[Problem]:
    return [
        Problem(id=f"p{n}", prompt=f"{n} =", answer=str(n)) for n in range(first, first + count)
    ]


DIGESTS = [digest_of(str(n).encode()) for n in range(9)]


def made(
    round_: int,
    start: int,
    rollbacks: int = 0,
    steps: int = 3,
    problems: str | None = None,
    per_step: int | None = None,
) -> RoundFigures:
    figures = dict.fromkeys(
        ("reward", "loss", "kl", "clip_share", "zero_variance_share", "response_tokens")
    )
    return RoundFigures(
        **{"run": "r", "round": round_, "start": DIGESTS[start], "rollbacks": rollbacks},
        **{"at": "2026-01-01T00:00:00Z", "steps": steps, "rewards": [], "tokens": 0},
        **{"seconds": 1.0, "waited": 0.0, "problems": problems, **figures},
        prompts_per_step=per_step,
    )


TWO_ROUNDS = [made(1, 0, steps=2), made(2, 1, steps=2)]


def test_drawn_is_what_the_trainer_takes(
    policy: Policy, run_settings: RunSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the rounds that it trains, with its own number of steps and its own b."""
    taken: set[int] = set()

    def recorded(*arguments: Any) -> list[int]:
        indices = private_prompts(*arguments)
        taken.update(indices)
        return indices

    private_prompts = training.private_prompts
    monkeypatch.setattr(training, "private_prompts", recorded)
    problems, settings = numbered(0, 30), run_settings.model_copy(update={"local_steps": 3})
    own = own_settings(ClientSettings(prompts_per_step=2), settings)
    policy.settings = settings
    updates, engine = UpdateContext(policy, TokenBudget(100)), TransformersEngine(policy)
    trainer = training.LocalTrainer(updates, engine, "a", problems, even, own_grpo=own.grpo)
    for round_, steps in ((1, (1, 3)), (3, (1,))):
        trainer.begin_round(round_, initial_adapter(policy.card.layout, 1))
        for step in steps:
            trainer.private_step(step)
    assert drawn(own, "a", 30, {1: 3, 3: 2}) == taken
    assert len(taken) == 6 and drawn(own, "a", 30, {1: 3, 3: 3}) != taken
    assert drawn(own, "a", 30, {1: 3, 2: 2}) != taken != drawn(own, "b", 30, {1: 3, 3: 2})


def test_rounds_that_a_rollback_has_undone_and_late_ones_were_not_trained() -> None:
    """Even if the member was away when they were repeated."""

    def rounds(*adapters: int, rollbacks: Sequence[int | None] = [None] * 5) -> list[RoundSummary]:
        return [
            RoundSummary(round=number, adapter=DIGESTS[adapter], rollbacks=count)
            for number, (adapter, count) in enumerate(zip(adapters, rollbacks, strict=False))
        ]

    def counted(
        history: Sequence[RoundFigures], rounds: Sequence[RoundSummary], last: int
    ) -> dict[int, int]:
        return {past.round: past.steps for past in effective(history, rounds, last)}

    undone = [made(1, 0), made(2, 1), made(3, 2), made(4, 3)]
    adapters = rounds(0, 1, 6, 7, 8)
    assert counted(undone, adapters, 4) == {1: 3}
    assert counted([*undone, made(4, 7, rollbacks=1)], adapters, 4) == {1: 3, 4: 3}
    assert counted(undone, rounds(0, 1, 2, 3, 4), 3) == {1: 3, 2: 3, 3: 3}
    late = [*undone[:2], undone[2].model_copy(update={"late": True}), undone[3]]
    assert counted(late, rounds(0, 1, 2, 3, 4), 4) == {1: 3, 2: 3, 4: 3}
    # The first repeated round starts from the same adapter; only the run knows that it differs.
    again = rounds(0, 1, 2, 7, rollbacks=[0, 0, 0, 1])
    assert counted(undone[:3], again, 3) == {1: 3, 2: 3}
    assert counted([*undone[:3], made(3, 2, rollbacks=1)], again, 3) == {1: 3, 2: 3, 3: 3}


def even(cases: Sequence[tuple[str, Problem]]) -> list[float]:
    return [float(len(text) % 2) for text, _ in cases]


def test_others_are_what_no_step_has_drawn(tmp_path: Path, run_settings: RunSettings) -> None:
    """Or the problems of a given file."""
    data, more = tmp_path / "private.jsonl", tmp_path / "others.jsonl"
    write_problems(data, numbered(0, 10))
    write_problems(more, numbered(10, 3))
    members, others = of_run(data, None, run_settings, "a", TWO_ROUNDS)
    assert len(members) == 6 and len(others) == 4
    assert {problem.id for problem in (*members, *others)} == {f"p{n}" for n in range(10)}
    assert of_run(data, more, run_settings, "a", TWO_ROUNDS) == (members, numbered(10, 3))
    trained, held_out = split(numbered(0, 10), 3)
    members, others = of_run(data, None, run_settings, "a", TWO_ROUNDS, holdout=3)
    assert members == [
        trained[index] for index in sorted(drawn(run_settings, "a", 7, {1: 2, 2: 2}))
    ]
    assert others[-3:] == held_out and len(others) == 10 - len(members)


def test_a_copy_of_a_drawn_prompt_is_not_among_the_others(
    tmp_path: Path, run_settings: RunSettings
) -> None:
    """A private file may contain a prompt twice, of which only one copy was drawn."""
    problems = numbered(0, 10)
    drawn_once = min(drawn(run_settings, "a", 11, {1: 2}))
    twin = problems[drawn_once].model_copy(update={"id": "twin"})
    data = tmp_path / "private.jsonl"
    write_problems(data, [*problems, twin])
    members, others = of_run(data, None, run_settings, "a", TWO_ROUNDS[:1])
    assert problems[drawn_once] in members and twin not in others
    assert not {each.prompt for each in members} & {each.prompt for each in others}


def test_another_file_than_was_trained_on_is_refused(
    tmp_path: Path, run_settings: RunSettings, caplog: pytest.LogCaptureFixture
) -> None:
    """So is another holdout. Rounds that do not record their problems are told with a warning."""
    data = tmp_path / "private.jsonl"
    write_problems(data, numbered(0, 12))
    trained, _ = split(numbered(0, 12), 2)
    rounds = [made(1, 0, steps=2, problems=prompts_digest(trained))]
    of_run(data, None, run_settings, "a", rounds, holdout=2)
    assert not caplog.messages
    with pytest.raises(InvalidProblems, match=r"trained on other problems than .* or with another"):
        of_run(data, None, run_settings, "a", rounds)
    write_problems(data, numbered(12, 12))
    with pytest.raises(InvalidProblems, match=r"trained on other problems"):
        of_run(data, None, run_settings, "a", rounds, holdout=2)
    of_run(data, None, run_settings, "a", TWO_ROUNDS[:1])
    assert "did not record its problems" in caplog.text


def test_rounds_with_another_number_of_prompts_in_a_step_are_refused(
    tmp_path: Path, run_settings: RunSettings
) -> None:
    """Their draws were others, so members would be taken for others."""
    data, b = tmp_path / "private.jsonl", run_settings.grpo.prompts_per_step
    write_problems(data, numbered(0, 12))
    rounds = [made(1, 0, steps=2, per_step=b), made(2, 1, steps=2, per_step=b)]
    assert of_run(data, None, run_settings, "a", rounds) == of_run(
        data, None, run_settings, "a", TWO_ROUNDS
    )
    fewer = run_settings.grpo.model_copy(update={"prompts_per_step": b - 1})
    own = run_settings.model_copy(update={"grpo": fewer})
    with pytest.raises(InvalidSettings, match=rf"= {b}, and it is {b - 1} now.*--members"):
        of_run(data, None, own, "a", rounds)


def test_what_the_schedule_does_not_tell_is_asked_for(
    tmp_path: Path, run_settings: RunSettings
) -> None:
    """Rounds missing from the history, resampling, and draws from a secret."""
    with pytest.raises(InvalidSettings, match=r"no history.*--members"):
        of_run(tmp_path / "none", None, run_settings, "a", [])
    grpo = run_settings.grpo.model_copy(update={"resample": 2})
    privacy = PrivacySettings(epsilon=8.0)
    for name, value in (("grpo", grpo), ("privacy", privacy)):
        with pytest.raises(InvalidSettings, match=r"(resample|epsilon).*--members"):
            drawn(run_settings.model_copy(update={name: value}), "a", 30, {1: 2})


def test_too_few_and_overlapping_problems_are_refused() -> None:
    """The message names ids and quotes no prompt."""
    enough = numbered(0, MIN_PROBLEMS)
    with pytest.raises(InvalidProblems, match=r"3 of the others .* as well: p7, p8, p9"):
        checked(enough, numbered(MIN_PROBLEMS - 3, MIN_PROBLEMS))
    with pytest.raises(InvalidProblems, match="9 problems were trained on"):
        checked(enough[1:], numbered(50, MIN_PROBLEMS))
    with pytest.raises(InvalidProblems, match=r"0 problems were not trained on.*--others"):
        checked(enough, [])


def test_a_large_set_is_sampled() -> None:
    """The same problems each time, without repetition."""
    many, others = numbered(0, 2 * MAX_PROBLEMS), numbered(2 * MAX_PROBLEMS, MIN_PROBLEMS)
    members, same = checked(many, others)
    assert len({problem.id for problem in members}) == MAX_PROBLEMS and same == others
    assert checked(many, others) == (members, same)
    assert members != many[:MAX_PROBLEMS]

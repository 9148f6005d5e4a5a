"""Rounds with differential privacy: kills, rollbacks, the budget, and what is reported."""

import json
import math
from collections.abc import Callable
from typing import Any, cast

import pytest

from pubswap_client.daemon.context import MemberContext
from pubswap_client.daemon.reporters import LogLines
from pubswap_client.daemon.round import LocalRound
from pubswap_client.state.journal import Journal, JournalOwner, RoundKey
from pubswap_client.state.privacy import PrivacyBudget
from pubswap_client.training.accountant import delta_of, epsilon_of
from pubswap_client.training.privacy import PrivateDraws, StepNoise
from pubswap_protocol.errors import InvalidSettings, PrivacySpent
from pubswap_protocol.messages import Progress
from pubswap_protocol.problems import Problem
from pubswap_protocol.settings import PrivacySettings
from pubswap_protocol.tensors.adapter import encode_adapter, initial_adapter
from support.client.one_client import ROUNDS, STEPS, Killed, World

PRIVATE = {"privacy": PrivacySettings(epsilon=8.0)}
FIGURES = {"reward", "loss", "kl", "clip_share", "zero_variance_share", "response_tokens"}


def test_a_private_client_that_dies_hands_in_the_same(world: Callable[..., World]) -> None:
    """Killed at every seventh point, it reuses its noise and pays for each round once."""
    undisturbed, killed = world(**PRIVATE), world(**PRIVATE)
    undisturbed.live()
    deaths = 0
    for point in range(1, 10_000, 7):
        killed.points.remaining = point
        try:
            killed.live()
        except Killed:
            deaths += 1
            continue
        break
    assert deaths > 5
    assert killed.adapters() == undisturbed.adapters()
    assert killed.coordinator.submitted == undisturbed.coordinator.submitted
    for one in (undisturbed, killed):
        budget = one.privacy()
        assert budget is not None
        assert len(budget.spent) == ROUNDS
        updates = [one.coordinator.updates[number].metrics for number in (1, 2)]
        delta = delta_of(8)
        costs = [epsilon_of(budget.spent[:rounds], delta) for rounds in (1, 2)]
        assert [metrics.epsilon for metrics in updates] == costs
        assert 0 < costs[0] < costs[1] <= 8.0


def test_noise_and_prompts_come_from_the_members_own_secret(world: Callable[..., World]) -> None:
    """With another secret the round differs, so knowing the run's seed does not reproduce it."""
    one, other = world(**PRIVATE), world(**PRIVATE)
    path = other.state / "privacy-budget.json"
    path.write_text(json.dumps({"secret": 32 * "6f"}))
    for each in (one, other):
        each.live()
    assert one.adapters() != other.adapters()
    sent = b"".join(one.coordinator.blobs.values()) + b"".join(one.coordinator.submitted.values())
    sent += "".join(each.model_dump_json() for each in one.coordinator.updates.values()).encode()
    assert bytes.fromhex(32 * "5e") not in sent
    assert (32 * "5e").encode() not in sent
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("method", ["pubswap", "fedavg"])
def test_no_figure_of_a_private_step_is_reported(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Updates and heartbeats report public steps only, which come from the noised policy."""
    told: list[Progress] = []
    one = world(**PRIVATE, method=method)
    monkeypatch.setattr(one.coordinator, "heartbeat", lambda run, body: told.append(body))
    steps = Steps()
    one.live(steps)
    public = method == "pubswap"
    for number, update in one.coordinator.updates.items():
        found = update.metrics.model_dump()
        assert (found["seconds"], found["sampling_seconds"]) == (None, None)
        assert found["examples"] == 8
        made = steps.made[(number - 1) * STEPS : number * STEPS]
        rewards = [reward if kind == "public" else None for kind, reward in made]
        assert found["step_rewards"] == rewards
        assert all((found[name] is not None) == public for name in FIGURES)
        if public:
            known = [reward for reward in rewards if reward is not None]
            assert found["reward"] == pytest.approx(sum(known) / len(known))
    assert told
    for progress in told:
        assert progress.memory_bytes is None  # which private steps have shaped
        counters = {"round", "step", "steps", "holds", "memory_bytes"}
        figures = progress.model_dump(exclude=counters).values()
        assert all(
            (figure is not None) == (public and progress.step % 2 == 0) for figure in figures
        )


class Steps(LogLines):
    """Records kind and reward of each step."""

    def __init__(self) -> None:
        self.made: list[tuple[str, float]] = []

    def step(self, report: Any) -> None:
        self.made.append((report.kind, report.metrics.reward))


def rounds(one: World, *numbers: int) -> list[bytes]:
    """Train these rounds one after another, each from the initial adapter; returns the results."""
    run, budget = one.coordinator.run, one.privacy()
    trainer, journal = one.trainer(budget), Journal(one.state, JournalOwner.of(run, "a"))
    layout = run.model.layout
    first = encode_adapter(layout, initial_adapter(layout, run.settings.seed))
    start = one.coordinator.put_blob(run.id, first)
    found, api = [], cast(Any, one.coordinator)
    for number in numbers:
        key = RoundKey(number, start)
        context = MemberContext(
            api=api,
            run=run,
            trainer=trainer,
            journal=journal,
            reporter=LogLines(),
            privacy=budget,
            public=api.problems,
        )
        LocalRound(context, key).train()
        found.append(encode_adapter(layout, trainer.adapter()))
    return found


def test_a_round_done_again_after_a_rollback_is_paid_again_with_other_noise(
    world: Callable[..., World],
) -> None:
    """Once that would exceed the run's epsilon, the member takes no further part."""
    one = world(**PRIVATE, method="fedavg")
    two_back = rounds(one, 1, 2)
    with pytest.raises(PrivacySpent, match=r"from 8 to 9.* above the run's privacy\.epsilon = 8"):
        rounds(one, 1)
    wide = world(**PRIVATE, method="fedavg")
    budget = wide.privacy()
    assert budget is not None
    wide.privacy = lambda: budget
    budget._target = 20.0
    again = rounds(wide, 1, 2, 1)
    assert again[:2] == two_back
    assert again[2] != again[0]
    assert len(budget.spent) == 3
    assert budget.epsilon > 8


def test_a_round_goes_on_with_the_noise_that_it_was_paid_for(
    world: Callable[..., World], problems: list[Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with more private prompts than before a restart, which need less noise from then on."""
    one = world(**PRIVATE, method="fedavg")
    noise, made = PrivateDraws.noise, list[tuple[int, int, float]]()

    def watched(draws: PrivateDraws, beginning: int, *step: int) -> StepNoise:
        drawn = noise(draws, beginning, *step)
        made.append((beginning, step[-1], drawn.noise_multiplier))
        return drawn

    monkeypatch.setattr(PrivateDraws, "noise", watched)
    one.points.remaining = 20
    with pytest.raises(Killed):
        one.live()
    assert made
    assert {beginning for beginning, *_ in made} == {1}
    assert made[-1][1] < STEPS
    problems += [each.model_copy(update={"id": f"{each.id}, new"}) for each in problems]
    budget = PrivacyBudget(one.state, "r1", one.coordinator.run.settings, len(problems))
    budget._target = 20.0  # two mechanisms together cost more than twice the one
    one.privacy = lambda: budget
    one.points.remaining = math.inf
    one.live()
    assert len(budget.spent) == ROUNDS
    paid = [each.noise_multiplier for each in budget.spent]
    assert [sigma for *_, sigma in made] == [paid[beginning - 1] for beginning, *_ in made]
    assert made[-1][2] < made[0][2]


def test_a_member_stops_without_its_record_of_spent_privacy(world: Callable[..., World]) -> None:
    """A damaged or missing file would hide the privacy already spent."""
    one = world(**PRIVATE, method="fedavg")
    rounds(one, 1, 2)
    path = one.state / "privacy-budget.json"
    kept = path.read_text()
    path.write_text(kept[:-10])
    with pytest.raises(InvalidSettings, match=r"privacy-budget\.json is damaged.*Restore"):
        rounds(one, 2)
    path.unlink()
    for number in (2, 3):  # in mid-round, and at the start of the next
        with pytest.raises(InvalidSettings, match=r"records 0 rounds.*beside it has 2"):
            rounds(one, number)
    path.write_text(kept)
    rounds(one, 2)

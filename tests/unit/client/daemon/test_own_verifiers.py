"""Rounds on private problems whose verifier only this member has."""

from collections.abc import Callable

import pytest

from pubswap_client.training.trainer import LocalTrainer
from pubswap_protocol.messages import Progress
from support.client.one_client import World

FIGURES = {"reward", "loss", "kl", "clip_share", "zero_variance_share", "response_tokens"}


@pytest.mark.parametrize("method", ["pubswap", "fedavg"])
@pytest.mark.parametrize("own", [True, False])
def test_no_figure_of_its_scores_is_reported(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch, method: str, own: bool
) -> None:
    """One such problem is enough; without any, all steps are reported."""
    told: list[Progress] = []
    one = world(method=method)
    monkeypatch.setattr(one.coordinator, "heartbeat", lambda run, body: told.append(body))
    make = one.trainer

    def trainer(privacy: object = None) -> LocalTrainer:
        made = make(None)
        first, *others = made.problems
        named = first.model_copy(update={"verifier": "plugin:mine"})
        made.problems = [named if own else first, *others]
        return made

    one.trainer = trainer  # type: ignore[assignment]
    one.live()
    public = method == "pubswap"
    for update in one.coordinator.updates.values():
        found = update.metrics.model_dump()
        kinds = [public and step % 2 == 1 for step in range(len(found["step_rewards"]))]
        assert found["step_rewards"] and any(kinds) is public
        for is_public, reward in zip(kinds, found["step_rewards"], strict=True):
            assert (reward is not None) == (is_public or not own)
        assert (found["seconds"] is None) == (found["sampling_seconds"] is None) == own
        assert all((found[name] is not None) == (public or not own) for name in FIGURES)
    assert told
    for progress in told:
        counters = {"round", "step", "steps", "holds", "memory_bytes"}
        figures = progress.model_dump(exclude=counters).values()
        if own and not (public and progress.step % 2 == 0):
            assert set(figures) == {None}
        assert (progress.memory_bytes is None) or not own

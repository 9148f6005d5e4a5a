"""The dashboard's charts."""

import httpx
import pytest

from pubswap_protocol.digests import digest_of
from pubswap_protocol.messages import (
    Evaluation,
    SubmitUpdate,
    UpdateMetrics,
)
from pubswap_protocol.tensors.adapter import encode_adapter
from pubswap_server.web.rendering import number_text
from support.coordinator.coordinator import (
    Server,
    begun,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (999.4, "999"),
        (999.7, "1,000"),
        (123456.0, "123,456"),
        (3e9, "3e+09"),
        (-1e15, "-1e+15"),
        (1.23e-05, "1.23e-05"),
    ],
)
def test_a_figure_is_short_enough_for_a_charts_axis(value: float, text: str) -> None:
    """Otherwise 3,000,000,000 was cut off at the left and read as 000,000."""
    assert number_text(value) == text


def test_a_rounds_means_are_drawn(server: Server, browser: httpx.Client) -> None:
    """pass@1 is the evaluator's; the other curves are means over the round's updates."""
    fed = begun(server)
    times = {"seconds": 10.0, "waiting_seconds": 2.0, "transfer_seconds": 1.0}
    # Only one member reports the KL divergence.
    for name, reward, kl in (("a", 0.25, 0.125), ("b", 0.5, None)):
        file = encode_adapter(fed.run.model.layout, fed.adapter(1))
        fed.members[name].put_blob(fed.run.id, file)
        metrics = UpdateMetrics(
            examples=10, steps=2, reward=reward, kl=kl, sampling_seconds=16 * reward, **times
        )
        metrics = metrics.model_copy(update={"step_rewards": [reward, 2 * reward]})
        update = SubmitUpdate(adapter=digest_of(file), metrics=metrics)
        fed.members[name].submit_update(fed.run.id, 1, update)
    means = fed.wait_for(1).rounds[1].means
    assert means is not None
    assert (means.reward, means.kl, means.loss) == (0.375, 0.125, None)
    for round_, score in ((0, 0.0), (1, 0.75)):
        fed.members["judge"].submit_evaluation(
            fed.run.id,
            round_,
            Evaluation(pass_at_1=score, by_topic={"sums": score}, problems=5, seconds=1.0),
        )
    page = browser.get(f"/runs/{fed.run.id}").text
    assert "Reward: 0.375 in round 1" in page
    assert "Reward: 0.75 in step 2, from 0.375" in page
    for part, seconds in (("sampling", 6), ("update", 4), ("waiting", 2), ("transfer", 1)):
        assert f"<title>round 1, {part}: {seconds} s</title>" in page
    assert "pass@1: 0.75 in round 1, from 0" in page
    assert "<td>0.000</td><td>0.750</td>" in page
    assert "from 0 to 0.75" in browser.get("/").text


def test_a_reward_is_drawn_at_its_step(server: Server, browser: httpx.Client) -> None:
    """Also if earlier steps report none, as private steps do with a privacy budget."""
    fed = begun(server, rounds=2, local_steps=4, privacy={"epsilon": 8.0})
    for name in "ab":
        file = encode_adapter(fed.run.model.layout, fed.adapter(1))
        fed.members[name].put_blob(fed.run.id, file)
        metrics = UpdateMetrics(examples=10, steps=4, step_rewards=[None, 0.25, None, 0.5])
        update = SubmitUpdate(adapter=digest_of(file), metrics=metrics)
        fed.members[name].submit_update(fed.run.id, 1, update)
    fed.wait_for(1)
    page = browser.get(f"/runs/{fed.run.id}").text
    assert "Reward: 0.5 in step 4, from 0.25" in page
    assert "step 2: 0.25" in page


def test_the_privacy_that_was_spent_is_a_curve_of_a_run_that_has_a_budget(
    server: Server, browser: httpx.Client
) -> None:
    """Other runs do not show the curve."""
    for settings, shown in (({"privacy": {"epsilon": 8.0}}, True), ({}, False)):
        fed = begun(server, rounds=2, method="fedavg", **settings)
        for name in "ab":
            data = encode_adapter(fed.run.model.layout, fed.adapter(1))
            fed.members[name].put_blob(fed.run.id, data)
            metrics = UpdateMetrics(examples=10, steps=2, epsilon=2.5 if shown else None)
            update = SubmitUpdate(adapter=digest_of(data), metrics=metrics)
            fed.members[name].submit_update(fed.run.id, 1, update)
        fed.wait_for(1)
        page = browser.get(f"/runs/{fed.run.id}").text
        assert ("Privacy spent, epsilon" in page) is shown

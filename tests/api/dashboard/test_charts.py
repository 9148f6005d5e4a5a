"""The dashboard's charts."""

from typing import Any

import httpx
import pytest
from sqlalchemy import insert
from sqlalchemy.orm import Session

from pubswap_protocol.digests import digest_of
from pubswap_protocol.messages import (
    Evaluation,
    Progress,
    SubmitUpdate,
    UpdateMetrics,
)
from pubswap_protocol.tensors.adapter import encode_adapter
from pubswap_server.clock import now
from pubswap_server.database.tables import StepRow
from pubswap_server.web.points import STEPS_DRAWN
from pubswap_server.web.rendering import number_text
from support.coordinator.coordinator import Federation, Server, begun
from support.coordinator.dashboard import rows
from support.coordinator.long_runs import crowd, lengthen


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


def points(browser: httpx.Client, fed: Federation) -> dict[str, dict[str, Any]]:
    """What the run's charts draw, by group, with their charts by title."""
    groups = browser.get(f"/runs/{fed.run.id}/points").json()
    return {
        group["of"]: group | {"charts": {chart["title"]: chart for chart in group["charts"]}}
        for group in groups
    }


def hand_in(fed: Federation, **metrics: Any) -> None:
    """Both members hand in round 1 with these metrics; a pair is one for each."""
    for number, name in enumerate("ab"):
        own = {key: v[number] if isinstance(v, tuple) else v for key, v in metrics.items()}
        file = encode_adapter(fed.run.model.layout, fed.adapter(number))
        fed.members[name].put_blob(fed.run.id, file)
        body = UpdateMetrics(examples=10, steps=fed.run.settings.local_steps, **own)
        update = SubmitUpdate(adapter=digest_of(file), metrics=body)
        fed.members[name].submit_update(fed.run.id, 1, update)
    fed.wait_for(1)


def test_a_rounds_means_are_drawn(server: Server, browser: httpx.Client) -> None:
    """pass@1 is the evaluator's, with its interval; the others are means over the updates."""
    fed = begun(server)
    times = {"seconds": 10.0, "waiting_seconds": 2.0, "transfer_seconds": 1.0}
    # Only one member reports the KL divergence.
    hand_in(fed, reward=(0.25, 0.5), kl=(0.125, None), sampling_seconds=(4.0, 8.0), **times)
    done = fed.view().rounds[1]
    means, drift = done.means, done.drift
    assert means is not None and drift is not None
    assert (means.reward, means.kl, means.loss) == (0.375, 0.125, None)
    for round_, score in ((0, 0.0), (1, 0.75)):
        found = Evaluation(
            pass_at_1=score, by_topic={"say": score, "old": score}, problems=20, seconds=1.0
        )
        fed.members["judge"].submit_evaluation(fed.run.id, round_, found)
    group = points(browser, fed)["round"]
    charts = group["charts"]
    assert group["x"] == [0, 1]
    # As `pubswap run show` and the adapter's card give it.
    assert charts["Drift between clients"]["series"]["Drift between clients"] == [
        None,
        pytest.approx(drift.pairwise),
    ]
    assert drift.pairwise != pytest.approx(drift.from_mean)
    assert charts["Reward"]["series"] == {"Reward": [None, 0.375]}
    assert charts["KL to the base model"]["series"] == {"KL to the base model": [None, 0.125]}
    assert charts["Time of a round"]["series"] == {
        "sampling": [None, 6.0],
        "update": [None, 4.0],
        "waiting": [None, 2.0],
        "transfer": [None, 1.0],
    }
    right = charts["pass@1"]
    assert (right["series"], right["n"]) == ({"pass@1": [0.0, 0.75]}, [20, 20])
    assert right["low"] == pytest.approx([0.0, 0.5313], abs=1e-4)
    assert right["high"] == pytest.approx([0.1611, 0.8881], abs=1e-4)
    page = browser.get(f"/runs/{fed.run.id}").text
    assert rows(page)[:4] == [
        ["Topic", "Before training", "Round 1"],
        ["All", "0.000 (0.00 to 0.16, n = 20)", "0.750 (0.53 to 0.89, n = 20)"],
        ["old", "0.000", "0.750"],  # not in the test set, so its number of problems is unknown
        ["say", "0.000 (0.00 to 0.43, n = 5)", "0.750 (0.34 to 0.95, n = 5)"],
    ]
    assert "from 0 to 0.75" in browser.get("/").text


def test_members_steps_are_drawn_while_they_train(server: Server, browser: httpx.Client) -> None:
    """At their place in the whole run, before the first round has ended; also with gaps."""
    fed = begun(server, rounds=3, local_steps=6, method="fedavg")
    assert points(browser, fed) == {}

    def report(name: str, round_: int, step: int, reward: float) -> None:
        progress = Progress(round=round_, step=step, steps=6, reward=reward, kl=reward / 8)
        fed.members[name].heartbeat(fed.run.id, progress)

    report("a", 1, 1, 0.25)
    report("a", 1, 3, 0.5)
    report("b", 1, 3, 0.125)
    group = points(browser, fed)["step"]
    assert (group["x"], group["names"], group["steps"]) == ([1, 3], ["a", "b"], 6)
    assert group["charts"]["Reward"]["series"] == {"a": [0.25, 0.5], "b": [None, 0.125]}
    assert set(group["charts"]) == {"Reward", "KL to the base model"}
    for name in "ab":
        fed.submit(name, 1, fed.adapter(1))
    fed.wait_for(1)
    report("b", 2, 2, 0.75)
    assert points(browser, fed)["step"]["x"] == [1, 3, 8]


def test_what_the_charts_get_is_bounded(server: Server, browser: httpx.Client) -> None:
    """Of many members the first, of many steps the last rounds, of long rounds every n-th step."""
    engine = server.app.state.services.database.engine
    for steps, rounds, drawn in ((40, 30, 280), (2000, 3, 250)):
        fed = begun(server, clients=1, rounds=99, local_steps=steps, method="fedavg")
        lengthen(engine, fed.run.id, ["a"], rounds)
        names = crowd(engine, fed.run.id, 20, since=rounds - 1)
        stored = [
            {"run_id": fed.run.id, "member": name, "round": round_, "step": step, "at": now()}
            | {"reward": 0.5}
            for name in names
            for round_ in range(max(1, rounds - 10), rounds + 2)
            for step in range(1 + steps // 1001, steps + 1, 1 + steps // 1001)
        ]
        with Session(engine) as session, session.begin():
            session.execute(insert(StepRow), stored)
        group = points(browser, fed)["step"]
        assert len(group["names"]) == 16 and group["more"] == 5
        assert len(group["x"]) == drawn <= STEPS_DRAWN
        assert (group["x"][-1] - 1) // steps == rounds, "the round under way"


def test_the_privacy_that_was_spent_is_a_curve_of_a_run_that_has_a_budget(
    server: Server, browser: httpx.Client
) -> None:
    """Other runs do not show the curve."""
    for settings, shown in (({"privacy": {"epsilon": 8.0}}, True), ({}, False)):
        fed = begun(server, rounds=2, method="fedavg", **settings)
        hand_in(fed, epsilon=2.5 if shown else None, reward=0.5)
        assert ("Privacy spent" in points(browser, fed)["round"]["charts"]) is shown

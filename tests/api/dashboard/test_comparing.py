"""Runs side by side."""

import re

import httpx
import pytest

from pubswap_protocol.messages import Evaluation
from support.coordinator.coordinator import Federation, Server, begun
from support.coordinator.dashboard import rows


def evaluated(server: Server, scores: tuple[float, ...], **settings: object) -> Federation:
    """A run whose adapters of rounds 0, 1, ... have this pass@1."""
    fed = begun(server, method="fedavg", **settings)
    for round_, score in enumerate(scores):
        if round_:
            for name in "ab":
                fed.submit(name, round_, fed.adapter(round_))
            fed.wait_for(round_)
        found = Evaluation(pass_at_1=score, by_topic={}, problems=20, seconds=1.0)
        fed.members["judge"].submit_evaluation(fed.run.id, round_, found)
    return fed


def test_runs_are_drawn_side_by_side_with_the_settings_that_differ(
    server: Server, browser: httpx.Client
) -> None:
    """By round and by the bytes of all members until then; equal names are told apart by id."""
    short, long = evaluated(server, (0.25, 0.5)), evaluated(server, (0.125, 0.5, 0.75), rounds=5)
    listed = browser.get("/").text
    assert [short.run.id, long.run.id] == re.findall(r'name="run" value="(\w+)"', listed)[::-1]
    query = {"run": [short.run.id, long.run.id]}
    page = browser.get("/compare", params=query).text
    table = {row[0]: row[1:] for row in rows(page)}
    names = [
        run.run.name if short.run.name != long.run.name else run.run.id for run in (short, long)
    ]
    assert table[names[0]][2:5] == ["0.250", *["0.500 (0.30 to 0.70, n = 20)"] * 2]
    assert table[names[1]][2] == "0.125"
    assert table["rounds"][:2] == [str(short.run.settings.rounds), "5"]
    assert "grpo.learning_rate" not in table
    by_round, by_bytes = browser.get("/compare/points", params=query).json()
    assert (by_round["x"], by_round["names"]) == ([0, 1, 2], names)
    assert by_round["charts"][0]["series"] == {
        names[0]: [0.25, 0.5, None],
        names[1]: [0.125, 0.5, 0.75],
    }
    factor = {"kB": 1e3, "MB": 1e6, "bytes": 1.0}[by_bytes["of"]]
    series = by_bytes["charts"][0]["series"][names[1]]
    at = [x * factor for x, value in zip(by_bytes["x"], series, strict=True) if value is not None]
    traffic = [each.traffic for each in server.client().run(long.run.id).members]
    total = sum(each.up + each.down for each in traffic)
    assert (
        at == pytest.approx([0, total // 3, total * 2 // 3]) and total > 0
    )  # round 3 is under way


def test_one_run_or_an_unknown_one_is_not_compared(server: Server, browser: httpx.Client) -> None:
    """One sentence says what to choose."""
    fed = begun(server)
    for query, words in (
        ([fed.run.id], "Choose two to 8 runs"),
        ([fed.run.id] * 3, "Choose two to 8 runs"),
        ([fed.run.id, "nobody"], "There is no run"),
        ([], "Choose two to 8 runs"),
    ):
        answer = browser.get("/compare", params={"run": query})
        assert answer.status_code in (404, 422) and words in answer.text

"""Runs of many rounds: they are read in pages, and the database does the counting."""

import re
from itertools import product
from typing import Any

import pytest
from sqlalchemy.orm import Session

from pubswap_protocol import paths
from pubswap_protocol.errors import NotFound, UnknownRun
from pubswap_protocol.messages import CreateRun, Progress, RunView, Score
from pubswap_server.database.tables import RunRow
from pubswap_server.runs import history, runs
from pubswap_server.runs.auth import Operator
from pubswap_server.runs.progress import steps
from pubswap_server.web import pages
from support.coordinator.coordinator import OPERATOR_TOKEN, Federation, Server, begun
from support.coordinator.counted import counted
from support.coordinator.long_runs import evaluation, lengthen
from support.coordinator.places import on_sqlite

NAMES = ("a", "b")
TABLES = re.compile(r"FROM (rounds|updates|public_steps|traffic|submissions)")


def long_run(server: Server, rounds: int, **overrides: object) -> Federation:
    """A run with this many finished rounds."""
    fed = begun(server, rounds=rounds + 10, **overrides)
    lengthen(server.app.state.services.database.engine, fed.run.id, NAMES, rounds)
    return fed


def numbers(fed: Federation, **params: int) -> list[int]:
    """The round numbers of one page."""
    with fed.server.http(fed.tokens["a"]) as http:
        page = http.get(paths.ROUNDS.format(run=fed.run.id), params=params).json()
    return [one["round"] for one in page["rounds"]]


def test_rounds_come_in_pages_and_in_order(server: Server) -> None:
    """Each round has its own counts, and members may request any page, too."""
    fed = long_run(server, 250)
    rounds = fed.view().rounds
    assert [one.round for one in rounds] == list(range(252))
    for one in rounds[1:251]:
        assert one.updates == 2
        assert one.evaluation is not None
        assert one.evaluation.pass_at_1 == evaluation(one.round)["pass_at_1"]
        assert [public_step.replaced for public_step in one.public_steps] == [2 * (one.round % 5)]
        assert (one.traffic.up, one.traffic.down) == (2 * (1 + 3), 2 * (2 + 4))
    assert (rounds[251].updates, rounds[251].public_steps) == (0, [])
    assert list(fed.members["a"].rounds(fed.run.id, after=99)) == rounds[100:]
    assert numbers(fed, after=100, limit=3) == [101, 102, 103]
    assert numbers(fed, after=251) == []


@on_sqlite
def test_large_rounds_make_short_pages(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page is limited by its exchanges' and topics' numbers, but holds at least one round."""
    fed = long_run(server, 20)
    # Two clients, one public step: four numbers a round, besides its topics.
    each = 4 + len(evaluation(1)["by_topic"])
    monkeypatch.setattr(history, "MAX_NUMBERS", 3 * each + 1)
    assert numbers(fed) == [0, 1, 2]
    monkeypatch.setattr(history, "MAX_NUMBERS", 3 * each - 1)
    assert numbers(fed) == [0, 1]
    monkeypatch.setattr(history, "MAX_NUMBERS", 1)
    assert numbers(fed) == [0]
    assert len(fed.view().rounds) == 22
    with Session(server.app.state.services.database.engine) as session:
        shown = pages._steps(session, session.get_one(RunRow, fed.run.id))["rounds"]
    assert [one.round for one in shown] == [21]  # the dashboard's is the last one


def test_a_run_is_shown_with_its_latest_and_best_round(server: Server) -> None:
    """Among equal scores the first is best; `best`, `final` and numbers choose the same rounds."""
    fed = long_run(server, 210)
    scores = {round_: evaluation(round_)["pass_at_1"] for round_ in range(1, 211)}
    best = max(scores, key=lambda round_: scores[round_])
    assert best < 102  # scores repeat every 101 rounds
    view = fed.operator.run(fed.run.id)
    assert view.best == Score(round=best, pass_at_1=scores[best], problems=5)
    assert view.latest == Score(round=210, pass_at_1=scores[210], problems=5)
    with Session(server.app.state.services.database.engine) as session:
        found = {
            which: history.chosen(session, fed.run.id, which)[0] for which in ("best", "final", "7")
        }
        assert found == {"best": best, "final": 210, "7": 7}
        for unknown in ("211", "9" * 5000, "last", "-1"):
            with pytest.raises(NotFound):
                history.chosen(session, fed.run.id, unknown)


def readings(fed: Federation, rounds: int) -> dict[str, list[str]]:
    """The statements on rounds that showing a run, and a page of its last rounds, execute."""
    found = {}
    engine = fed.server.app.state.services.database.engine
    with Session(engine) as session:
        row = session.get_one(RunRow, fed.run.id)
        asked = {
            "show": lambda: runs.view(session, row, Operator()),
            "page": lambda: history.page(session, row.id, fed.run.settings, rounds - 5, 5),
        }
        for name, ask in asked.items():
            with counted(engine) as counts:
                ask()
            found[name] = [one for one in counts.statements if TABLES.search(one)]
    return found


@on_sqlite
def test_reading_a_run_asks_the_same_however_long_it_is(server: Server) -> None:
    """The same statements after 300 rounds as after 10, and none reads all rows of a table."""
    short, long = (readings(long_run(server, rounds), rounds) for rounds in (10, 300))
    assert short == long
    assert {name: len(found) for name, found in long.items()} == {"show": 3, "page": 5}
    for statement in [one for found in long.values() for one in found]:
        assert any(word in statement for word in ("LIMIT", "GROUP BY", "BETWEEN"))


def test_no_move_of_a_run_is_shown_in_its_own_transaction(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Building the response holds no write lock, and the response includes no rounds."""
    shown: list[bool] = []

    def watched(session: Session, *args: Any) -> RunView:
        shown.append(session.connection().get_execution_options().get("immediate", False))
        return view(session, *args)

    view = runs.view
    monkeypatch.setattr(runs, "view", watched)
    fed = begun(server)
    for path in (paths.RUN_PAUSE, paths.RUN_RESUME, paths.RUN_CANCEL):
        with server.http() as http:
            answer = http.post(path.format(run=fed.run.id))
        assert answer.status_code == 200
        assert "rounds" not in answer.json()
    assert len(shown) >= 6  # including created, opened and started
    assert not any(shown)


def test_runs_come_in_pages_newest_first(server: Server) -> None:
    """Without members. A page begins after a given run; an unknown run is a 404."""
    made = [begun(server).run.id for _ in range(3)]
    with server.http() as http:
        first = http.get(paths.RUNS, params={"limit": 2}).json()["runs"]
        after = http.get(paths.RUNS, params={"limit": 1, "after": first[-1]["id"]}).json()["runs"]
        refused = http.get(paths.RUNS, params={"after": "0" * 16})
    assert [one["id"] for one in first] == made[:0:-1]
    assert all(one["members"] == [] for one in first)
    assert [one["id"] for one in after] == [made[0]]
    everything = [one.id for one in server.client().runs()]
    assert everything[:3] == made[::-1]
    assert len(set(everything)) == len(everything)
    assert (refused.status_code, refused.json()["code"]) == (404, UnknownRun.code)


def test_a_run_is_found_by_its_id_before_another_by_that_name(server: Server) -> None:
    """A run named like another's id does not shadow it."""
    fed = begun(server)
    body = CreateRun(name=fed.run.id, settings=fed.run.settings, model=fed.run.model)
    named = fed.operator.create_run(body)
    assert fed.operator.run(fed.run.id).id == fed.run.id
    assert fed.operator.move_run(fed.run.id, paths.RUN_CANCEL).id == fed.run.id
    assert fed.operator.run(named.id).id == named.id


def test_steps_come_in_pages_and_are_drawn(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """None is left out or repeated, at whichever step a page ends; they tell of the run's end."""
    fed = begun(server, local_steps=6)
    assert fed.operator.run(fed.run.id).left_seconds is None
    for name, step in product(NAMES, range(1, 7)):
        progress = Progress(round=1, step=step, steps=6, reward=step / 8)
        fed.members[name].heartbeat(fed.run.id, progress)
    monkeypatch.setattr(steps, "PAGE", 5)
    found = [(each.member, each.step, each.reward) for each in fed.operator.steps(fed.run.id)]
    assert found == [(name, step, step / 8) for name in NAMES for step in range(1, 7)]
    assert fed.operator.run(fed.run.id).left_seconds is not None
    with server.http(None) as http:
        http.post("/sign-in", data={"token": OPERATOR_TOKEN})
        [group] = http.get(f"/runs/{fed.run.id}/points").json()
        assert group["charts"][0]["series"] == {n: [s / 8 for s in range(1, 7)] for n in NAMES}
        assert "6 of 6" in http.get(f"/runs/{fed.run.id}").text

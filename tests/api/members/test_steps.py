"""Figures of members' steps: kept from their heartbeats, read by the operator, and bounded."""

import asyncio
import json
from itertools import product
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from pubswap_client.operator.watching import step_rows
from pubswap_protocol import paths
from pubswap_protocol.errors import Unavailable
from pubswap_protocol.messages import Progress, Role, Rollback, StepPoint
from pubswap_protocol.schedule import public_step_number, public_updates, update_order
from pubswap_protocol.settings import RunSettings
from pubswap_server.database.tables import StepRow
from pubswap_server.runs.auth import MemberPrincipal
from pubswap_server.runs.progress import heartbeats, steps
from pubswap_server.runs.progress.heartbeats import WriteBehind
from pubswap_server.runs.progress.steps import StepRetention
from support.coordinator.coordinator import Federation, Server, begun, merged


def report(fed: Federation, name: str, step: int, round_: int = 1, **figures: float) -> None:
    """A member's heartbeat after a step."""
    fed.members[name].heartbeat(fed.run.id, Progress(round=round_, step=step, steps=6, **figures))


def places(fed: Federation) -> list[tuple[str, int, int]]:
    """The members, rounds and steps of the points that are kept."""
    return [(point.member, point.round, point.step) for point in fed.operator.steps(fed.run.id)]


def test_the_figures_of_each_step_are_kept(server: Server) -> None:
    """Whatever order they come in; a repetition without figures erases nothing."""
    fed = begun(server, local_steps=6)
    report(fed, "b", 2, reward=0.5, kl=0.25, response_tokens=12.5, tokens_per_second=80.0)
    report(fed, "a", 3, reward=0.125)
    report(fed, "b", 1, reward=0.0)
    report(fed, "b", 2)
    report(fed, "a", 3, reward=0.375, loss=-1.5)
    found = list(fed.operator.steps(fed.run.id))
    assert [(each.member, each.step, each.reward) for each in found] == [
        ("a", 3, 0.375),
        ("b", 1, 0.0),
        ("b", 2, 0.5),
    ]
    assert (found[0].loss, found[0].kl) == (-1.5, None)
    assert (found[2].kl, found[2].response_tokens, found[2].tokens_per_second) == (0.25, 12.5, 80)


def test_a_place_that_is_none_is_refused(server: Server) -> None:
    """As the step to continue after."""
    fed = begun(server)
    with server.http() as http:
        for cursor in ("a", "a:1", "a:1:x", "a:1:-1", "A:1:1", f"a:{10**30}:1", "a:1:1\n"):
            answer = http.get(paths.STEPS.format(run=fed.run.id), params={"after": cursor})
            assert answer.status_code == 422, cursor


def test_what_is_no_step_of_the_run_is_dropped(server: Server) -> None:
    """Steps and rounds beyond it, and an evaluator's; numbers that are none are refused or empty.

    The heartbeat itself stays good: it is a sign of life.
    """
    fed = begun(server, local_steps=6)
    for step, round_ in ((7, 1), (2**31 - 1, 1), (1, 2), (1, 2**31 - 1), (1, 0), (0, 1)):
        report(fed, "a", step, round_, reward=0.5)
    report(fed, "judge", 1, reward=0.5)
    assert places(fed) == []
    address = paths.HEARTBEAT.format(run=fed.run.id)
    with server.http(fed.tokens["a"]) as http:
        for step, value in ((1, "1e308"), (2, "-1e308"), (3, "1e15")):
            body = f'{{"round": 1, "step": {step}, "steps": 6, "reward": {value}, "kl": 0.5}}'
            assert _sent(http, address, body) == 204, value
            for none in ("NaN", "-Infinity", "1e999"):
                assert _sent(http, address, body.replace(value, none)) == 422
        for fields in ({"step": -1}, {"round": -1}, {"step": 1.5}, {"step": 2**31}, {"kl": "1"}):
            body = json.dumps({"round": 1, "step": 5, "steps": 6, "kl": 1.0} | fields)
            assert _sent(http, address, body) == 422, fields
    found = {point.step: (point.reward, point.kl) for point in fed.operator.steps(fed.run.id)}
    assert found == {1: (None, 0.5), 2: (None, 0.5), 3: (1e15, 0.5)}


def _sent(http: httpx.Client, address: str, body: str) -> int:
    headers = {"Content-Type": "application/json"}
    return http.post(address, content=body, headers=headers).status_code


def test_a_rollback_forgets_the_steps_that_are_repeated(server: Server) -> None:
    """Those of the rounds before stay."""
    fed = begun(server, rounds=3, local_steps=6, method="fedavg")
    for round_ in (1, 2):
        report(fed, "a", 3, round_, reward=0.5)
        for name in "ab":
            fed.submit(name, round_, fed.adapter(round_))
        fed.wait_for(round_)
    assert places(fed) == [("a", 1, 3), ("a", 2, 3)]
    fed.operator.roll_back(fed.run.id, Rollback(to=1))
    assert places(fed) == [("a", 1, 3)]


def test_a_long_run_keeps_the_steps_of_its_last_rounds(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those for which there is no room are deleted when a round begins, and not taken again."""
    monkeypatch.setattr(steps, "MAX_POINTS_A_MEMBER", 12)
    fed = begun(server, rounds=4, local_steps=6, method="fedavg")
    for round_ in (1, 2, 3):
        report(fed, "a", 6, round_, reward=0.5)
        for name in "ab":
            fed.submit(name, round_, fed.adapter(round_))
        fed.wait_for(round_)
    report(fed, "a", 5, 2, reward=0.5)
    assert places(fed) == [("a", 3, 6)]
    engine = server.app.state.services.database.engine
    with Session(engine) as session:
        stored = select(func.count()).where(StepRow.run_id == fed.run.id)
        assert session.scalar(stored) == 1


@pytest.mark.parametrize("clients", [1, 2, 8, 1000, 10**5])
@pytest.mark.parametrize("local_steps", [1, 24, 40, 999, 1001, 10**6])
def test_no_run_keeps_more_points_than_there_is_room_for(clients: int, local_steps: int) -> None:
    """Whatever its members and steps; at least something of the round under way."""
    kept = StepRetention.of(RunSettings(clients=clients, local_steps=local_steps, method="fedavg"))
    a_round = local_steps // kept.every
    assert 1 <= a_round <= 1000 and kept.rounds >= 1
    assert clients * a_round * kept.rounds <= max(steps.MAX_POINTS, clients)
    assert a_round * kept.rounds <= steps.MAX_POINTS_A_MEMBER


class Down:
    """A database that is down until it is repaired, and then counts what is written."""

    def __init__(self) -> None:
        self.up = False

    async def write(self, work: Any) -> None:
        """Fail, or do nothing."""
        if not self.up:
            raise Unavailable


def test_a_flood_while_the_database_is_down_fills_no_memory() -> None:
    """It takes no other member's room, and what fits is kept until the database is back."""
    asyncio.run(_flood())


async def _flood() -> None:
    database = Down()
    buffer = WriteBehind(database)  # type: ignore[arg-type]
    flood, other = (MemberPrincipal(n, "r", name, Role.CLIENT) for n, name in enumerate("ab"))
    for turn in range(3):
        for step in range(1, heartbeats.MAX_WAITING):
            number = turn * heartbeats.MAX_WAITING + step
            buffer.seen(flood, Progress(round=1, step=number, steps=6, reward=0.5))
        buffer.seen(other, Progress(round=1, step=turn + 1, steps=6, reward=0.5))
        await buffer.flush()
        assert len(buffer._steps[flood.id]) <= heartbeats.MAX_WAITING
    assert len(buffer._steps[other.id]) == 3
    database.up = True
    await buffer.flush()
    assert not buffer._steps


def test_steps_are_printed_as_csv(server: Server) -> None:
    """The values of the API, public steps marked; of one member, if named."""
    fed = begun(server, local_steps=6, method={"period": 3})
    for name, step in product("ab", (2, 3)):
        report(fed, name, step, reward=step / 8, kl=1e-9)
    header, *rows = step_rows(fed.operator, fed.run.id, None)
    points = list(fed.operator.steps(fed.run.id))
    assert header.split(",")[:4] == ["member", "round", "step", "public"]
    assert set(header.split(",")) == {*StepPoint.model_fields, "public"}
    columns = [dict(zip(header.split(","), row.split(","), strict=True)) for row in rows]
    assert [(each["member"], each["step"], each["public"]) for each in columns] == [
        *(("a", "2", "0"), ("a", "3", "1"), ("b", "2", "0"), ("b", "3", "1"))
    ]
    for column, point in zip(columns, points, strict=True):
        assert (float(column["reward"]), float(column["kl"])) == (point.reward, point.kl)
        assert column["loss"] == ""
    assert [row.split(",")[0] for row in step_rows(fed.operator, fed.run.id, "b")][1:] == ["b", "b"]


@pytest.mark.parametrize("mode", ["synchronous", "pipelined"])
@pytest.mark.parametrize("period", [2, 3])
def test_public_steps_are_where_their_updates_are(mode: str, period: int) -> None:
    """As in the order that members make them in, which a pipelined run changes."""
    settings = merged({"local_steps": 7, "method": {"period": period, "mode": mode}})
    order = update_order(settings)
    expected = [
        n for n, step in enumerate(order, 1) if public_step_number(settings, step) is not None
    ]
    assert public_updates(settings) == expected

"""Members that are away because of their organisation's policy while a run goes on."""

from collections import Counter
from datetime import timedelta

import pytest

from pubswap_protocol import paths
from pubswap_protocol.messages import Away, RunState, TaskKind
from pubswap_server.clock import now
from pubswap_server.rate_limits import Rate
from pubswap_server.runs import events
from pubswap_server.runs.events import LEFT_OUT
from support.coordinator.coordinator import Federation, Server, begun, create, good_hello
from support.eventually import until

AT_NIGHT = Away(code="not_approved", detail="Outside of this organisation's hours until 18:00.")


def log(fed: Federation) -> list[str]:
    """The kinds of the run's events."""
    return [event.kind for event in fed.operator.events(fed.run.id).events]


def test_a_round_does_not_wait_for_a_member_that_is_away(server: Server) -> None:
    """It closes without it; the operator sees why it is away, and a hello brings it back.

    The append-only log has one line for each code, not for each wording.
    """
    fed = begun(server, method="fedavg", clients=3)
    for name in "ab":
        fed.submit(name, 1, fed.adapter(1))
    other = AT_NIGHT.model_copy(update={"detail": "Outside of this organisation's hours."})
    for reason in (other, AT_NIGHT):
        fed.members["c"].away(fed.run.id, reason)
    assert fed.wait_for(1).rounds[1].updates == 2
    shown = {member.name: member.away for member in fed.operator.members(fed.run.id).members}
    assert shown == {"a": None, "b": None, "c": AT_NIGHT, "judge": None}
    assert log(fed).count("away") == 1
    fed.members["c"].hello(fed.run.id, good_hello(fed.run))
    assert not any(member.away for member in fed.operator.members(fed.run.id).members)
    for name in "ab":
        fed.submit(name, 2, fed.adapter(2))
    waits = fed.members["a"].task(fed.run.id, 0).waits_for
    assert waits is not None and waits.startswith("c to finish round 2")
    fed.submit("c", 2, fed.adapter(3))
    assert fed.wait_for(2).rounds[2].updates == 3
    assert log(fed).count("back") == 1


def test_an_exchange_does_not_wait_for_a_member_that_goes_away_in_its_middle(
    server: Server,
) -> None:
    """The others are answered; responses submitted before the member went away still count."""
    fed = begun(server, clients=3)
    for name in "ac":
        body = fed.responses(name, 1, 1, [1, 1])
        fed.members[name].submit_responses(fed.run.id, 1, 1, body)
    fed.members["b"].away(fed.run.id, AT_NIGHT)
    fed.members["c"].away(fed.run.id, AT_NIGHT)
    assert fed.members["a"].exchanged(fed.run.id, 1, 1)
    (closed,) = [e for e in fed.operator.events(fed.run.id).events if e.kind == "exchange closed"]
    assert closed.details["clients"] == 2


def test_a_run_starts_with_a_member_that_is_away(server: Server) -> None:
    """It has enrolled, so it counts; until it comes back, the round goes on with the others."""
    fed = create(server, method="fedavg")
    fed.operator.move_run(fed.run.id, paths.RUN_OPEN)
    for name in "ab":
        fed.enroll(name)
    fed.members["b"].away(fed.run.id, Away(code="not_approved", detail="Not approved yet."))
    fed.start()
    fed.submit("a", 1, fed.adapter(1))
    assert fed.wait_for(1).rounds[1].updates == 1
    fed.members["b"].hello(fed.run.id, good_hello(fed.run))
    assert fed.members["b"].task(fed.run.id, 0).kind is TaskKind.TRAIN


def test_a_quorum_that_policies_keep_out_of_reach_is_said_with_their_reasons(
    server: Server,
) -> None:
    """`waiting_for` says who is away and why."""
    fed = begun(server, method="fedavg", rounds=1, aggregation={"quorum": 2})
    fed.members["b"].away(fed.run.id, Away(code="denied", detail="Denied."))
    fed.submit("a", 1, fed.adapter(1))
    until(lambda: "away: b (denied)" in (fed.view().waiting_for or ""))
    fed.members["b"].hello(fed.run.id, good_hello(fed.run))
    until(lambda: fed.view().waiting_for is None)
    fed.submit("b", 1, fed.adapter(2))
    assert fed.wait_for(1).state is RunState.FINISHED


@pytest.mark.parametrize(
    "body",
    [
        {"code": "not_approved", "detail": "\x1b[2J"},
        {"code": "not_approved", "detail": "x" * 401},
        {"code": "Outside Hours", "detail": "x"},
        {"code": "not_approved"},
    ],
)
def test_a_reason_is_short_and_plain(server: Server, body: dict[str, str]) -> None:
    """It is printed on terminals, so it may hold printable characters only."""
    fed = begun(server, method="fedavg")
    with server.http(fed.tokens["a"]) as http:
        reply = http.post(paths.AWAY.format(run=fed.run.id), json=body)
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid")
    assert not any(member.away for member in fed.operator.members(fed.run.id).members)


def test_a_member_that_comes_and_goes_for_ever_writes_a_bounded_number_of_lines(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is never shortened. It says once that lines were left out; the next day has new ones.

    What is shown stays right meanwhile, and the other members' lines are not left out.
    """
    monkeypatch.setattr(events, "LINES_A_DAY", 5)
    limits = server.app.state.services.limits.members
    monkeypatch.setattr(limits, "rate", Rate(limits.rate.per_second, 1e9))
    fed = begun(server, method="fedavg", clients=3, aggregation={"quorum": 3})

    def flap(times: int) -> None:
        for turn in range(times):
            fed.members["c"].away(fed.run.id, Away(code="abc"[turn % 3], detail="x" * 400))
            if turn % 2:
                fed.members["c"].hello(fed.run.id, good_hello(fed.run))

    flap(20)
    fed.members["c"].away(fed.run.id, AT_NIGHT)
    counts = Counter(log(fed))
    assert counts["away"] + counts["back"] == 5
    left_out = [e.details for e in fed.operator.events(fed.run.id).events if e.kind == LEFT_OUT]
    assert {"about": "c", "lines_a_day": 5} in left_out
    assert counts["waiting"] <= 5 and counts[LEFT_OUT] <= 2
    shown = {member.name: member.away for member in fed.operator.members(fed.run.id).members}
    assert shown["c"] == AT_NIGHT
    fed.members["b"].away(fed.run.id, AT_NIGHT)
    assert log(fed).count("away") == counts["away"] + 1
    tomorrow = now() + timedelta(days=1)
    monkeypatch.setattr(events, "now", lambda: tomorrow)
    flap(20)
    assert Counter(log(fed))["away"] + Counter(log(fed))["back"] == 5 + 1 + 5


def test_a_run_that_waits_and_goes_on_for_ever_writes_a_bounded_number_of_lines(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members that come and go change why a run waits; the operator still sees the reason."""
    monkeypatch.setattr(events, "LINES_A_DAY", 3)
    limits = server.app.state.services.limits.members
    monkeypatch.setattr(limits, "rate", Rate(limits.rate.per_second, 1e9))
    fed = begun(server, method="fedavg", clients=2, aggregation={"quorum": 2})
    for turn in range(8):
        fed.members["b"].away(fed.run.id, Away(code="x" * (turn + 1), detail="x"))
        reason = f"b ({'x' * (turn + 1)})"
        until(lambda reason=reason: reason in (fed.view().waiting_for or ""))
    assert log(fed).count("waiting") == 3
    assert log(fed).count(LEFT_OUT) == 2  # about the member, and about the run's waits

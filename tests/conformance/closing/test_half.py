"""Rounds and exchanges without a quorum close with half of who is heard from."""

from collections.abc import Callable

from support.coordinator.coordinator import Federation, Server, begun
from support.eventually import until

SOON, LATER = {"deadline_seconds": 0.3}, {"deadline_seconds": 3600}


def answer(fed: Federation, *names: str) -> None:
    """Answer public step 1 as these members."""
    for name in names:
        body = fed.responses(name, 1, 1, [1, 1])
        fed.members[name].submit_responses(fed.run.id, 1, 1, body)


def test_an_early_member_alone_closes_no_round(server: Server) -> None:
    """The others are in time; meanwhile the operator is told what ends the wait."""
    fed = begun(server, method="fedavg", clients=4, rounds=1, aggregation=SOON)
    fed.submit("a", 1, fed.adapter(1))
    until(lambda: fed.view().waiting_for)
    reason = str(fed.view().waiting_for)
    assert "1 is past its deadline and waits for half of its clients: 2 or more; 1 came" in reason
    assert "It waits for b, c, d." in reason
    assert f"suspend 2 of them: `pubswap member suspend {fed.run.name} MEMBER`" in reason
    logged = [e.details for e in fed.operator.events(fed.run.id).events if e.kind == "waiting"]
    assert [details["reason"] for details in logged] == [reason]
    assert fed.submit("b", 1, fed.adapter(2)) == "accepted"
    assert fed.wait_for(1).rounds[1].updates == 2


def test_an_early_member_alone_closes_no_exchange(server: Server) -> None:
    """Nor does its update, with which it takes no part in exchanges any more."""
    fed = begun(server, clients=4, rounds=1, method=SOON, aggregation=LATER)
    answer(fed, "a")
    fed.submit("a", 1, fed.adapter(1))
    until(lambda: fed.view().waiting_for)
    reason = str(fed.view().waiting_for)
    assert reason.startswith("Public step 1 of round 1 is past its deadline and waits for half")
    assert "It waits for b, c, d." in reason
    answer(fed, "b")
    assert fed.members["a"].exchanged(fed.run.id, 1, 1)
    (public_step,) = fed.view().rounds[1].public_steps
    assert public_step.correct_share.keys() == {"a", "b"}
    until(lambda: fed.view().waiting_for is None)


def test_the_command_that_is_named_ends_the_wait(server: Server) -> None:
    """One is half once two of the three others are suspended."""
    fed = begun(server, method="fedavg", clients=4, rounds=1, aggregation=SOON)
    fed.submit("a", 1, fed.adapter(1))
    until(lambda: "suspend 2 of them" in (fed.view().waiting_for or ""))
    for name in "bc":
        assert fed.view().round == 1
        fed.operator.decide(fed.run.id, name, "/v1/runs/{run}/members/{member}/suspend")
    assert fed.wait_for(1).rounds[1].updates == 1


def test_three_dead_of_four_stop_nothing(server: Server, hours: Callable[[float], None]) -> None:
    """Neither the exchange nor the round that one member answers."""
    fed = begun(server, clients=4, rounds=1, method=LATER, aggregation=LATER)
    answer(fed, "a")
    hours(24)
    answer(fed, "a")  # heard from again
    until(lambda: fed.view().waiting_for is None)
    assert fed.members["a"].exchanged(fed.run.id, 1, 1)
    fed.submit("a", 1, fed.adapter(1))
    hours(24)
    fed.members["a"].task(fed.run.id, 0)
    assert fed.wait_for(1).rounds[1].updates == 1


def test_a_member_that_is_heard_from_is_waited_for_after_the_deadline(
    server: Server, hours: Callable[[float], None]
) -> None:
    """A fourth member, which is dead, does not count."""
    fed = begun(server, method="fedavg", clients=4, rounds=1, aggregation=LATER)
    hours(24)
    fed.submit("a", 1, fed.adapter(1))
    for name in "bc":
        fed.members[name].task(fed.run.id, 0)
    fed.view()  # writes who was heard from
    hours(0.6)
    for name in "bc":
        fed.members[name].task(fed.run.id, 0)
    fed.view()
    hours(0.6)
    until(lambda: "waits for b, c." in (fed.view().waiting_for or ""))
    assert fed.submit("c", 1, fed.adapter(3)) == "accepted"
    assert fed.wait_for(1).rounds[1].updates == 2

"""Members that join, leave and return mid-run, and updates of fewer local steps."""

import re

import numpy as np
import pytest

from pubswap_protocol import paths
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import InvalidUpdate, WrongState
from pubswap_protocol.messages import (
    Away,
    CreateInvite,
    Role,
    Rollback,
    RunState,
    SubmitUpdate,
    TaskKind,
    UpdateMetrics,
)
from pubswap_protocol.tensors.adapter import Adapter, decode_adapter, encode_adapter
from support.coordinator.coordinator import Federation, Server, begun, create, good_hello
from support.eventually import until

LEFT = Away(code="left", detail="It left.")


def task(fed: Federation, name: str) -> TaskKind:
    """The kind of a member's current task."""
    return fed.members[name].task(fed.run.id, 0).kind


def hand_in(fed: Federation, name: str, round_: int, adapter: Adapter, steps: int) -> None:
    """Submit an update of this many local steps."""
    data = encode_adapter(fed.run.model.layout, adapter)
    fed.members[name].put_blob(fed.run.id, data)
    metrics = UpdateMetrics(examples=10, steps=steps)
    update = SubmitUpdate(adapter=digest_of(data), metrics=metrics)
    fed.members[name].submit_update(fed.run.id, round_, update)


def test_a_newcomer_waits_for_the_next_round_and_nobody_for_it(server: Server) -> None:
    """The current round closes without it; in the next, all begin from the same adapter."""
    fed = begun(server, method="fedavg")
    fed.submit("a", 1, fed.adapter(1))
    newcomer = fed.enroll("c")
    waiting = newcomer.task(fed.run.id, 0)
    assert waiting.kind is TaskKind.WAIT
    shown = {member.name: member.joining for member in fed.operator.members(fed.run.id).members}
    assert shown == {"a": False, "b": False, "c": True, "judge": False}
    assert (waiting.waits_for or "").startswith("round 2, because you came mid-round: b to finish")
    fed.submit("b", 1, fed.adapter(2))
    assert fed.wait_for(1).rounds[1].updates == 2
    tasks = [fed.members[name].task(fed.run.id, 0) for name in "abc"]
    assert [each.kind for each in tasks] == [TaskKind.TRAIN] * 3
    assert {each.adapter for each in tasks} == {fed.view().rounds[1].adapter}
    for name in "abc":
        fed.submit(name, 2, fed.adapter(3))
    assert fed.wait_for(2).rounds[2].updates == 3


def test_responses_to_a_public_step_make_a_newcomer_wait_for_the_next_round(
    server: Server,
) -> None:
    """No exchange of the round waits for it either."""
    fed = begun(server)
    for name in "ab":
        body = fed.responses(name, 1, 1, [1, 1])
        if name == "b":
            fed.enroll("c")
        fed.members[name].submit_responses(fed.run.id, 1, 1, body)
    assert task(fed, "c") is TaskKind.WAIT
    assert fed.members["a"].exchanged(fed.run.id, 1, 1)


def test_an_evaluator_that_comes_in_mid_run_joins_no_round(server: Server) -> None:
    """It evaluates at once, and is not shown as one that waits for the next round."""
    fed = begun(server, method="fedavg")
    fed.submit("a", 1, fed.adapter(1))
    fed.enroll("second", Role.EVALUATOR)
    assert task(fed, "second") is TaskKind.EVALUATE
    assert not any(member.joining for member in fed.operator.members(fed.run.id).members)


def test_a_newcomer_is_in_a_round_that_nobody_has_come_far_in(server: Server) -> None:
    """It trains right away, and the others wait for it."""
    fed = begun(server, method="fedavg")
    fed.enroll("c")
    assert task(fed, "c") is TaskKind.TRAIN
    for name in "ab":
        fed.submit(name, 1, fed.adapter(1))
    waits = fed.members["a"].task(fed.run.id, 0).waits_for
    assert waits is not None and waits.startswith("c to finish round 1")


def test_who_has_enrolled_and_does_not_come_is_not_waited_for(server: Server) -> None:
    """An organisation may take a long time between enrolling and its first start."""
    fed = begun(server, method="fedavg", rounds=3)
    invite = fed.operator.invite(fed.run.id, CreateInvite(name="late"))
    fed.operator.enroll(invite.invite)
    for round_ in (1, 2):
        for name in "ab":
            fed.submit(name, round_, fed.adapter(round_))
        assert fed.wait_for(round_).rounds[round_].updates == 2


def test_a_round_that_cannot_close_without_it_takes_a_newcomer_at_once(server: Server) -> None:
    """Inviting a client, which the operator is advised to do, works."""
    fed = begun(server, method="fedavg", rounds=1, aggregation={"quorum": 2})
    fed.submit("a", 1, fed.adapter(1))
    fed.operator.revoke(fed.run.id, "b")
    until(lambda: "1 more clients are missing" in (fed.view().waiting_for or ""))
    fed.enroll("c")
    until(lambda: task(fed, "c") is TaskKind.TRAIN)
    fed.submit("c", 1, fed.adapter(2))
    assert fed.wait_for(1).state is RunState.FINISHED


def test_an_exchange_that_cannot_close_without_it_takes_a_newcomer_at_once(
    server: Server,
) -> None:
    """Its round alone could close."""
    fed = begun(server, method={"quorum": 2})
    body = fed.responses("a", 1, 1, [1, 1])
    fed.members["a"].submit_responses(fed.run.id, 1, 1, body)
    fed.members["b"].away(fed.run.id, LEFT)
    fed.enroll("c")
    until(lambda: task(fed, "c") is TaskKind.TRAIN)


def test_a_round_that_is_begun_again_takes_a_newcomer(server: Server) -> None:
    """After a rollback, all begin it together."""
    fed = begun(server, method="fedavg")
    fed.submit("a", 1, fed.adapter(1))
    fed.enroll("c")
    assert task(fed, "c") is TaskKind.WAIT
    fed.operator.roll_back(fed.run.id, Rollback(to=0))
    assert task(fed, "c") is TaskKind.TRAIN


def test_a_member_that_was_away_for_rounds_comes_back_at_the_next_one(server: Server) -> None:
    """Members further into the round do not wait for it."""
    fed = begun(server, method="fedavg", rounds=5, clients=3)
    fed.members["c"].away(fed.run.id, LEFT)
    for round_ in (1, 2):
        for name in "ab":
            fed.submit(name, round_, fed.adapter(round_))
        fed.wait_for(round_)
    fed.submit("a", 3, fed.adapter(3))
    fed.members["c"].hello(fed.run.id, good_hello(fed.run))
    assert task(fed, "c") is TaskKind.WAIT
    fed.submit("b", 3, fed.adapter(3))
    assert fed.wait_for(3).rounds[3].updates == 2
    assert task(fed, "c") is TaskKind.TRAIN
    kinds = [event.kind for event in fed.operator.events(fed.run.id).events]
    assert kinds.count("joined") == 1


def test_a_member_that_is_back_in_the_same_round_goes_on_with_it(server: Server) -> None:
    """It was present when the round began."""
    fed = begun(server, method="fedavg", aggregation={"quorum": 2})
    fed.members["b"].away(fed.run.id, LEFT)
    fed.submit("a", 1, fed.adapter(1))
    fed.members["b"].hello(fed.run.id, good_hello(fed.run))
    assert task(fed, "b") is TaskKind.TRAIN


def test_a_quorum_counts_who_is_here_down_to_the_minimum(server: Server) -> None:
    """With a quorum of three, two of three go on; one alone does not, and the operator is told."""
    fed = begun(
        server, method="fedavg", clients=3, aggregation={"quorum": 3}, members={"minimum": 2}
    )
    fed.members["c"].away(fed.run.id, LEFT)
    for name in "ab":
        fed.submit(name, 1, fed.adapter(1))
    assert fed.wait_for(1).rounds[1].updates == 2
    fed.submit("a", 2, fed.adapter(2))
    fed.members["b"].away(fed.run.id, LEFT)
    until(lambda: "Round 2 closes with 2 or more updates" in (fed.view().waiting_for or ""))
    assert fed.view().round == 2
    fed.members["c"].hello(fed.run.id, good_hello(fed.run))
    until(lambda: task(fed, "c") is TaskKind.TRAIN)
    fed.submit("c", 2, fed.adapter(3))
    assert fed.wait_for(2).state is RunState.FINISHED


def test_an_exchange_closes_with_who_is_here_when_one_leaves_in_it(server: Server) -> None:
    """The quorum was all three; the two that remain get their groups."""
    fed = begun(server, clients=3, method={"quorum": 3}, members={"minimum": 2})
    for name in "ab":
        body = fed.responses(name, 1, 1, [1, 1])
        fed.members[name].submit_responses(fed.run.id, 1, 1, body)
    fed.members["c"].away(fed.run.id, LEFT)
    assert fed.members["a"].exchanged(fed.run.id, 1, 1)
    (closed,) = [e for e in fed.operator.events(fed.run.id).events if e.kind == "exchange closed"]
    assert closed.details["clients"] == 2


def test_below_the_minimum_an_exchange_closes_and_its_round_does_not(server: Server) -> None:
    """A member left alone trains on its own responses, and its update waits for others'."""
    fed = begun(server, clients=3, method={"quorum": 3}, members={"minimum": 2})
    for name in "bc":
        fed.members[name].away(fed.run.id, LEFT)
    body = fed.responses("a", 1, 1, [1, 1])
    fed.members["a"].submit_responses(fed.run.id, 1, 1, body)
    assert fed.members["a"].exchanged(fed.run.id, 1, 1) == body
    fed.submit("a", 1, fed.adapter(1))
    until(lambda: "Round 1 closes with 2 or more updates" in (fed.view().waiting_for or ""))
    assert fed.view().round == 1


def test_a_run_starts_with_the_minimum_of_the_expected(server: Server) -> None:
    """The others join later."""
    fed = create(server, method="fedavg", clients=2, members={"minimum": 1})
    fed.operator.move_run(fed.run.id, paths.RUN_OPEN)
    with pytest.raises(WrongState, match="0 of 1 clients have enrolled"):
        fed.start()
    fed.enroll("a")
    fed.start()
    assert task(fed, "a") is TaskKind.TRAIN


def test_updates_weigh_by_the_steps_they_were_made_of(server: Server) -> None:
    """(1 a + 4 b) / 5 in float64, rounded once; the log says who made fewer steps."""
    fed = begun(
        server,
        method="fedavg",
        local_steps=4,
        aggregation={"weights": "steps"},
        members={"fewest_steps": 1},
    )
    a, b = fed.adapter(1), fed.adapter(2)
    hand_in(fed, "a", 1, a, steps=1)
    hand_in(fed, "b", 1, b, steps=4)
    done = fed.wait_for(1).rounds[1]
    layout = fed.run.model.layout
    mean = decode_adapter(layout, fed.members["a"].blob(fed.run.id, done.adapter or ""))
    for name, found in mean.items():
        wanted = 0.2 * a[name].astype(np.float64) + 0.8 * b[name].astype(np.float64)
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7)
    assert done.means is not None
    assert done.means.steps == 2.5
    (fewer,) = [e for e in fed.operator.events(fed.run.id).events if e.kind == "fewer steps"]
    assert fewer.details == {"member": "a", "round": 1, "steps": 1}


@pytest.mark.parametrize(
    ("fewest", "steps", "taken"),
    [
        *((2, steps, "2 (members.fewest_steps) to 4") for steps in (0, 1, 5)),
        *((None, steps, "all 4; fewer are for runs with members.") for steps in (0, 1, 3, 5)),
    ],
)
def test_an_update_of_too_few_steps_or_too_many_is_refused(
    server: Server, fewest: int | None, steps: int, taken: str
) -> None:
    """The error says what the run accepts, and the member may submit again."""
    fed = begun(server, method="fedavg", local_steps=4, members={"fewest_steps": fewest})
    message = f"made of {steps} local steps; the run takes {taken}"
    with pytest.raises(InvalidUpdate, match=re.escape(message)):
        hand_in(fed, "a", 1, fed.adapter(1), steps=steps)
    hand_in(fed, "a", 1, fed.adapter(1), steps=fewest or 4)


def test_an_exchange_does_not_wait_for_who_has_handed_in(server: Server) -> None:
    """A member that submitted early answers no later public step, and no exchange waits for it."""
    fed = begun(
        server,
        clients=3,
        local_steps=4,
        method={"quorum": 3},
        members={"fewest_steps": 1},
    )
    hand_in(fed, "c", 1, fed.adapter(1), steps=1)
    for name in "ab":
        body = fed.responses(name, 1, 1, [1, 1])
        fed.members[name].submit_responses(fed.run.id, 1, 1, body)
    assert fed.members["a"].exchanged(fed.run.id, 1, 1)

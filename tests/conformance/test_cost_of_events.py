"""The cost of an event does not grow with what happened before in its round or run.

Cost is counted in statements, rows and reads, not in time.
"""

import threading
import time
from typing import Any

import pytest
from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from pubswap_protocol import paths
from pubswap_protocol.messages import Away, DonorEvidence, PublicStepSummary, TaskKind
from pubswap_protocol.methods.strategies import Pool, Strategy
from pubswap_server import services
from pubswap_server.clock import now
from pubswap_server.conductor import stalls
from pubswap_server.database.tables import (
    DoubtRow,
    PublicStepRow,
    RunRow,
    SubmissionRow,
)
from pubswap_server.exchange import doubts, exchanges
from pubswap_server.exchange.exchanges import summary_of
from pubswap_server.exchange.sampling import donor_number
from pubswap_server.runs import rounds, snapshot
from support.coordinator.coordinator import Federation, Server, begun, create
from support.coordinator.counted import counted
from support.coordinator.places import on_sqlite
from support.eventually import until

STEPS = 40
ANSWER = {"digest": "blake3:0", "late": False, "received_at": now()}


def engine_of(fed: Federation) -> Any:
    """The coordinator's database engine."""
    return fed.server.app.state.services.database.engine


def close_steps(fed: Federation, steps: range) -> None:
    """Insert closed public steps of round 1, answered by both clients, into the database."""
    where = [
        {"run_id": fed.run.id, "round": 1, "public_step": public_step} for public_step in steps
    ]
    done = {"closed": True, "first_at": now(), "summary": {"public_step": 1}}
    answer = {
        "digest": "blake3:0",
        "correct": [[True] * 4] * 2,
        "late": False,
        "received_at": now(),
    }
    with Session(engine_of(fed)) as session, session.begin():
        session.execute(insert(PublicStepRow), [one | done for one in where])
        session.execute(
            insert(SubmissionRow),
            [one | answer | {"member": name} for one in where for name in "ab"],
        )


def cost_of_an_event(fed: Federation) -> tuple[int, int]:
    """The statements and rows that the conductor and the run's snapshot read."""
    with Session(engine_of(fed)) as session:
        row = session.get_one(RunRow, fed.run.id)
        with counted(engine_of(fed)) as found:
            assert exchanges.due(session, row) == []
            rounds.close_if_due(session, row)
            stalls.note_stall(session, row, None, 0)
            snapshot.read_snapshot(session, row.id)
    return len(found.statements), found.rows


@on_sqlite
def test_closed_steps_are_not_read_again_for_each_event(server: Server) -> None:
    """Thirty closed public steps add nothing to the cost of an open one."""
    fed = begun(server, local_steps=2 * STEPS)
    body = fed.responses("a", 1, STEPS, [1, 1])
    fed.members["a"].submit_responses(fed.run.id, 1, STEPS, body)
    before = cost_of_an_event(fed)
    close_steps(fed, range(1, 31))
    assert cost_of_an_event(fed) == before


@on_sqlite
def test_who_waits_is_not_woken_by_what_its_peers_hand_in(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads the run when it arrives, and then not before the round has ended."""
    looks: list[str] = []

    def reading(session: Session, run: str) -> snapshot.RunSnapshot:
        looks.append(run)
        return snapshot.read_snapshot(session, run)

    monkeypatch.setattr(services, "read_snapshot", reading)
    fed = begun(server, method="fedavg", clients=6)
    assert fed.submit("a", 1, fed.adapter(1)) == "accepted"
    found: list[TaskKind] = []
    waiting = threading.Thread(
        target=lambda: found.append(fed.members["a"].task(fed.run.id, 20).kind)
    )
    waiting.start()
    until(lambda: looks == [fed.run.id])
    for number, name in enumerate("bcde"):
        assert fed.submit(name, 1, fed.adapter(number)) == "accepted"
    time.sleep(0.3)
    assert looks == [fed.run.id]
    assert fed.submit("f", 1, fed.adapter(9)) == "accepted"
    waiting.join(20)
    assert found == [TaskKind.TRAIN]
    assert len(looks) <= 3  # at most one each for "updates closed" and "aggregated"


def test_what_an_exchange_comes_to_is_computed_while_others_write(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It blocks no writer, and the exchange closes with its summary."""
    under_way, written = threading.Event(), threading.Event()
    waited: list[bool] = []

    def slowly(strategy: Strategy, pool: Pool) -> PublicStepSummary:
        under_way.set()
        waited.append(written.wait(60))
        return summary_of(strategy, pool)

    monkeypatch.setattr(exchanges, "summary_of", slowly)
    fed, other = begun(server, method={"strategy": "random"}), create(server)
    for name in "ab":
        fed.members[name].submit_responses(fed.run.id, 1, 1, fed.responses(name, 1, 1, [2, 1]))
    assert under_way.wait(60)
    other.operator.move_run(other.run.id, paths.RUN_OPEN)
    written.set()
    fed.members["a"].exchanged(fed.run.id, 1, 1)
    assert waited[0]
    (public_step,) = fed.view().rounds[1].public_steps
    assert (public_step.clients, set(public_step.replaced_share)) == (2, {"a", "b"})


@on_sqlite
def test_who_answers_while_the_outcome_is_computed_is_in_it(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline has passed, but the exchange stays open until its closing transaction."""
    seen: list[int] = []
    statuses: list[str] = []

    def watched(strategy: Strategy, pool: Pool) -> PublicStepSummary:
        seen.append(len(pool.correct))
        if len(seen) == 1:
            receipt = fed.members["b"].submit_responses(fed.run.id, 1, 1, bodies["b"])
            statuses.append(str(receipt.status))
        return summary_of(strategy, pool)

    fed = begun(server, method={"deadline_seconds": 0.2, "quorum": 1})
    bodies = {name: fed.responses(name, 1, 1, [2, 1]) for name in "ab"}
    monkeypatch.setattr(exchanges, "summary_of", watched)
    fed.members["a"].submit_responses(fed.run.id, 1, 1, bodies["a"])
    fed.members["a"].exchanged(fed.run.id, 1, 1)
    assert statuses == ["accepted"]
    assert seen == [1, 2]
    (public_step,) = fed.view().rounds[1].public_steps
    assert set(public_step.correct_share) == {"a", "b"}


def test_six_hundred_members_draw_at_random_and_the_exchange_closes(server: Server) -> None:
    """It must stay within PostgreSQL's time limit."""
    names = [f"m{number:03}" for number in range(600)]
    fed = begun(server, clients=3, method={"strategy": "random"})
    fed.members["a"].public_step_prompts(fed.run.id, 1, 1)
    where = {"run_id": fed.run.id, "round": 1, "public_step": 1}
    answer = {
        "digest": "blake3:0",
        "correct": [[True, False, False, True]] * 2,
        "late": False,
        "received_at": now(),
    }
    with Session(engine_of(fed)) as session, session.begin():
        session.execute(insert(PublicStepRow), [where | {"first_at": now(), "closed": False}])
        session.execute(
            insert(SubmissionRow),
            [where | answer | {"member": name} for name in [*names, "a", "b", "c"]],
        )
        session.get_one(RunRow, fed.run.id).state = "exchanging"
    server.app.state.services.changes.notify(fed.run.id, awaited=False)
    until(lambda: fed.view().rounds[1].public_steps != [])
    (public_step,) = fed.view().rounds[1].public_steps
    assert public_step.clients == 603
    assert sum(share * 8 for share in public_step.replaced_share.values()) == pytest.approx(
        public_step.replaced
    )


@on_sqlite
def test_the_conductor_looks_at_a_round_without_its_rows(server: Server) -> None:
    """It counts submissions in the database and reads no member's rows."""
    fed = begun(server, method="fedavg", clients=4)
    for number, name in enumerate("abc"):
        fed.submit(name, 1, fed.adapter(number))
    assert cost_of_an_event(fed)[1] <= 2  # the run, and the previous round


@on_sqlite
def test_a_report_of_many_donors_costs_a_few_statements(server: Server) -> None:
    """Whatever the number of donors, and also if there are earlier sums to add to."""
    fed = begun(server)
    donors = [f"m{number}" for number in range(40)]

    def costs(some: list[str]) -> tuple[int, float]:
        def work(session: Session) -> tuple[int, float]:
            run = session.get_one(RunRow, fed.run.id)
            assert run.sampling_secret is not None
            numbers = [donor_number(run.sampling_secret, "a", name) for name in some]
            reported = [DonorEvidence(number=n, responses=4, other_noise=-1.0) for n in numbers]
            with counted(engine_of(fed)) as found:
                doubts.report(session, run, "a", 1, reported, dict.fromkeys(some, 4))
                session.flush()
                assert not doubts.excluded(session, run.id, "m0")
            sums = session.scalars(select(DoubtRow.other_noise).where(DoubtRow.donor.in_(some)))
            return len(found.statements), sum(sums)

        return fed.server.do(fed.server.app.state.services.database.write(work))

    assert costs(donors[:3])[1] == -3.0
    statements, evidence = costs(donors)
    assert evidence == -43.0
    assert statements <= 3  # the sums so far, the new ones and the changed ones


@pytest.mark.full
@pytest.mark.parametrize("place", ["postgresql and bucket"], indirect=True, scope="session")
def test_who_repeats_its_absence_waits_for_no_change_of_the_run(server: Server) -> None:
    """A member that sits out a round says so every half minute, and changes nothing by it."""
    fed = begun(server, method="fedavg")
    reason = Away(code="diverged", detail="The loss is not a number.")
    fed.members["a"].away(fed.run.id, reason)
    with Session(engine_of(fed)) as session, session.begin():
        session.get_one(RunRow, fed.run.id, with_for_update=True)
        fed.members["a"].away(fed.run.id, reason)

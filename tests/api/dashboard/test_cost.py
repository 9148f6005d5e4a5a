"""What a page of a large run costs the coordinator."""

import time
from collections.abc import Sequence
from typing import Any

import httpx
from sqlalchemy import Engine, insert, select, update
from sqlalchemy.orm import Session

from pubswap_server.clock import now
from pubswap_server.database.tables import RoundRow, StepRow, SubmissionRow
from pubswap_server.web.points import MEMBERS_DRAWN, STEPS_DRAWN
from support.coordinator.coordinator import Federation, Server, begun
from support.coordinator.long_runs import crowd, lengthen, writing
from support.eventually import until

ROUNDS = 500
MEMBERS = 1000
SECONDS = 0.3  # of CPU time: what a page of such a run may take
TRIES = 20  # the least counts, because a busy machine makes some dearer
PARTS = ("activity", "progress", "results", "members", "steps", "log")


def large(server: Server) -> Federation:
    """A run in round 501 whose members all answered its public step."""
    engine = server.app.state.services.database.engine
    group = {"prompts_per_step": 8, "responses_per_prompt": 8}
    fed = begun(server, clients=1, rounds=999, method={"period": 1}, grpo=group)
    run, prompts = fed.run.id, fed.run.settings.grpo.prompts_per_step
    lengthen(engine, run, ["a"], ROUNDS)
    file = fed.responses("a", ROUNDS + 1, 1, [1] * prompts)
    fed.members["a"].submit_responses(run, ROUNDS + 1, 1, file)
    until(lambda: any(each.public_steps for each in fed.operator.rounds(run, after=ROUNDS)))
    names = crowd(engine, run, MEMBERS, since=ROUNDS - 5)
    row = _answered(engine, run)
    with writing(engine) as session:
        session.execute(insert(SubmissionRow), [row | {"member": name} for name in names])
        _report(session, run, ["a", *names])
    return fed


def _answered(engine: Engine, run: str) -> dict[str, Any]:
    """The row of `a`'s responses, which all others repeat.

    In a session of its own: SQLite refuses a write after a read if another has written in between.
    """
    columns = SubmissionRow.__table__.columns
    query = select(*columns).where(SubmissionRow.run_id == run, SubmissionRow.public_step == 1)
    with Session(engine) as session:
        return dict(session.execute(query).mappings().one())


def _report(session: Session, run: str, names: Sequence[str]) -> None:
    """Steps of all members that a chart draws."""
    session.execute(
        insert(StepRow),
        [
            {"run_id": run, "member": name, "round": ROUNDS + 1 - back // 2, "step": 1 + back % 2}
            | {"at": now(), "reward": back / 999, "kl": 0.01, "tokens_per_second": 9.5}
            for name in names[:MEMBERS_DRAWN]
            for back in range(STEPS_DRAWN)
        ],
    )


def keep_responses(server: Server, run: str) -> None:
    """Of the last rounds, as many and as long ones as an evaluator may send."""
    text = 1000 * "x"
    shown = [
        {
            "topic": f"topic {n % 50}",
            "prompt": text,
            "answer": text,
            "response": text,
            "right": True,
        }
        for n in range(500)
    ]
    last = RoundRow.run_id == run, RoundRow.round.between(ROUNDS - 19, ROUNDS)
    with writing(server.app.state.services.database.engine) as session:
        session.execute(update(RoundRow).where(*last).values(responses=shown))


def test_a_page_of_a_large_run_costs_little(server: Server, browser: httpx.Client) -> None:
    """With 500 rounds and 1,000 members, each takes at most 0.3 s of CPU time."""
    first, second = large(server), large(server)
    keep_responses(server, first.run.id)
    run, both = f"/runs/{first.run.id}", f"run={first.run.id}&run={second.run.id}"
    assert browser.get(first.members["a"].link(first.run.id).path).status_code == 200
    for path in (
        *("/", run, f"{run}/points", *(f"{run}/parts/{part}" for part in PARTS)),
        *(f"{run}/log", f"{run}/settings", f"{run}/new", f"{run}/acts/suspend?member=a"),
        *(f"{run}/rounds/{ROUNDS}/responses", f"{run}/rounds/{ROUNDS}/responses?topic=topic 7"),
        *(f"{run}/rounds/{ROUNDS + 1}/steps/1", "/own", "/own/points"),
        *(f"/compare?{both}", f"/compare/points?{both}"),
    ):
        spent: list[float] = []
        while not spent or (min(spent) > SECONDS and len(spent) < TRIES):
            began = time.process_time()
            answer = browser.get(path)
            spent.append(time.process_time() - began)
            assert answer.status_code == 200, (path, answer.text)
        assert min(spent) <= SECONDS, (path, spent)
        if path == run:
            assert f"Round {ROUNDS + 1} of 999" in answer.text
            assert "802 more are not shown" in answer.text  # of 1,000, `a` and the evaluator

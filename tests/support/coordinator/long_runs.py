"""Long runs without the time they take: their rows are inserted directly."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import get_args

from sqlalchemy import Engine, insert, text, update
from sqlalchemy.orm import Session

from pubswap_server.clock import now
from pubswap_server.database.tables import (
    MemberRow,
    PublicStepRow,
    RoundRow,
    RunRow,
    TrafficRow,
    UpdateRow,
)
from pubswap_server.runs.traffic import TOTAL, Kind

DIGEST = "blake3:" + 64 * "0"
BATCH = 200
KINDS = get_args(Kind)


def lengthen(
    engine: Engine, run: str, names: Sequence[str], rounds: int, public_steps: int = 1
) -> None:
    """Advance a run that has just begun to round `rounds` + 1, as if its members had done so.

    Round r scores (r * 37 % 101) / 101, and has `public_steps` exchanges that each replaced r % 5
    responses of every member.
    """
    with writing(engine) as session:
        for first in range(1, rounds + 1, BATCH):
            numbers = range(first, min(first + BATCH, rounds + 1))
            _add(session, run, names, numbers, public_steps)
        session.execute(
            insert(TrafficRow),
            [
                {
                    "run_id": run,
                    "round": TOTAL,
                    "member": name,
                    "kind": kind,
                    "bytes": size * rounds,
                }
                for name in names
                for size, kind in enumerate(KINDS, 1)
            ],
        )
        session.execute(insert(RoundRow), [{"run_id": run, "round": rounds + 1}])
        session.execute(update(RunRow).where(RunRow.id == run).values(round=rounds + 1))


@contextlib.contextmanager
def writing(engine: Engine) -> Iterator[Session]:
    """A transaction that waits for the server's own."""
    with Session(engine) as session, session.begin():
        if engine.dialect.name == "sqlite":  # the server writes too, and the disk may be busy
            session.execute(text("PRAGMA busy_timeout = 60000"))
        yield session


def _add(
    session: Session, run: str, names: Sequence[str], numbers: range, public_steps: int
) -> None:
    where = [{"run_id": run, "round": number} for number in numbers]
    done = {"adapter": DIGEST, "drift": {"pairwise": 1.0, "from_mean": 0.5}}
    table = [
        key | done | {"evaluation": evaluation(key["round"])} for key in where if key["round"] > 1
    ]
    session.execute(
        update(RoundRow)
        .where(RoundRow.run_id == run, RoundRow.round == 1)
        .values(done | {"evaluation": evaluation(1)})
    )
    if table:
        session.execute(insert(RoundRow), table)
    update_ = {"digest": DIGEST, "stored": DIGEST, "metrics": {"examples": 10, "steps": 2}}
    session.execute(
        insert(UpdateRow),
        [
            key | update_ | {"member": name, "late": False, "received_at": now()}
            for key in where
            for name in names
        ],
    )
    session.execute(
        insert(TrafficRow),
        [
            key | {"member": name, "kind": kind, "bytes": size}
            for key in where
            for name in names
            for size, kind in enumerate(KINDS, 1)
        ],
    )
    session.execute(
        insert(PublicStepRow),
        [
            key
            | {
                "public_step": public_step,
                "closed": True,
                "first_at": now(),
                "summary": summary(key, names, public_step),
            }
            for key in where
            for public_step in range(1, public_steps + 1)
        ],
    )


def evaluation(round_: int) -> dict[str, object]:
    """An evaluator's report on a round."""
    score = (round_ * 37 % 101) / 101
    return {"pass_at_1": score, "by_topic": {"say": score}, "problems": 5, "seconds": 1.0}


def summary(key: dict[str, object], names: Sequence[str], public_step: int) -> dict[str, object]:
    """An exchange's summary."""
    replaced = int(str(key["round"])) % 5
    return {
        "public_step": public_step,
        "clients": len(names),
        "replaced": replaced * len(names),
        "replaced_share": dict.fromkeys(names, replaced / 8),
        "correct_share": dict.fromkeys(names, 0.5),
    }


def crowd(engine: Engine, run: str, count: int, since: int) -> list[str]:
    """Enrol `count` members, with rows of their own from round `since` to the one under way."""
    names = [f"m{number:04}" for number in range(count)]
    # A session of its own: SQLite refuses a write after a read if another has written in between.
    with Session(engine) as session:
        last = session.get_one(RunRow, run).round
    with writing(engine) as session:
        session.execute(
            insert(MemberRow),
            [
                {
                    "run_id": run,
                    "name": name,
                    "role": "client",
                    "token_sha256": f"{run}{number:048}",
                    "active": True,
                    "suspended": False,
                    "accepted": True,
                    "last_seen": now(),
                    "progress": {"round": last, "step": 1, "steps": 2, "reward": 0.5},
                }
                for number, name in enumerate(names)
            ],
        )
        metrics = {"examples": 10, "steps": 48, "step_rewards": 48 * [0.5]}
        both = [(round_, name) for round_ in range(since, last) for name in names]
        session.execute(
            insert(UpdateRow),
            [
                {"run_id": run, "round": round_, "member": name, "digest": DIGEST}
                | {"stored": DIGEST, "metrics": metrics, "late": False, "received_at": now()}
                for round_, name in both
            ],
        )
        session.execute(
            insert(TrafficRow),
            [
                {"run_id": run, "round": round_, "member": name, "kind": kind, "bytes": 1}
                for round_, name in [*both, *((TOTAL, name) for name in names)]
                for kind in KINDS
            ],
        )
        for round_ in range(since, last):
            values = summary({"round": round_}, names, 1)
            session.execute(
                update(PublicStepRow)
                .where(PublicStepRow.run_id == run, PublicStepRow.round == round_)
                .values(summary=values)
            )
    return names

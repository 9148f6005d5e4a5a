"""Doubts that a donor's responses were sampled, from its receivers' reports.

A receiver reports the evidence against each donor's responses. It is summed until there are enough
responses for a verdict, and then starts at 0 again, so that a donor gains no credit from a long
honest past. Receivers may lie, so no single one's verdicts exclude anybody, and none judges more
responses than it was given.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import bindparam, func, insert, select, update
from sqlalchemy.orm import Session

from pubswap_protocol.messages import DonorEvidence, Sampling
from pubswap_server.database.tables import Base, DoubtRow, RunRow
from pubswap_server.exchange.sampling import donor_number, doubtful
from pubswap_server.runs.events import record

FEWEST = 2  # receivers that must doubt a donor before it is excluded
DOUBTS = Base.metadata.tables[DoubtRow.__tablename__]
NO_SUMS = {"responses": 0, "other_noise": 0.0}
UNKNOWN = {**NO_SUMS, "verdicts": 0, "doubts": 0, "doubted": False}


def outvoted(doubting: int, judging: int) -> bool:
    """Whether at least two receivers, and most of those with a verdict, doubt a donor."""
    return doubting >= FEWEST and 2 * doubting > judging


def report(
    session: Session,
    run: RunRow,
    receiver: str,
    round_: int,
    reported: Iterable[DonorEvidence],
    received: Mapping[str, int],
) -> None:
    """Add a receiver's evidence from a round; numbers that belong to no donor are ignored.

    `received` counts the responses that it got, by donor; it judges no more than these.
    """
    if run.sampling_secret is None or not (reports := {each.number: each for each in reported}):
        return
    numbers = {name: donor_number(run.sampling_secret, receiver, name) for name in sorted(received)}
    donors = {name: reports[number] for name, number in numbers.items() if number in reports}
    # At most three statements on plain rows, however many there are: the run's row is locked, and
    # each receiver reports on each of its donors.
    pairs = (DOUBTS.c.run_id == run.id) & (DOUBTS.c.receiver == receiver)
    columns = [DOUBTS.c[name] for name in UNKNOWN]
    chosen = select(DOUBTS.c.donor, *columns).where(pairs, DOUBTS.c.donor.in_(donors))
    stored = {
        donor: dict(zip(UNKNOWN, sums, strict=True)) for donor, *sums in session.execute(chosen)
    }
    fresh = {name: {**UNKNOWN} for name in donors if name not in stored}
    for name, sums in (stored | fresh).items():
        sums["responses"] += min(donors[name].responses, received[name])
        sums["other_noise"] += donors[name].other_noise
        if (evidence := _judge(sums)) is not None:
            details = {"member": name, "receiver": receiver, "round": round_}
            record(session, run.id, "sampling doubted", **details, evidence=evidence)
    if fresh:
        keys = {"run_id": run.id, "receiver": receiver}
        rows = [{**keys, "donor": name, **sums} for name, sums in fresh.items()]
        session.execute(insert(DOUBTS), rows)
    if stored:
        changed = update(DOUBTS).where(pairs, DOUBTS.c.donor == bindparam("of"))
        session.execute(changed, [{"of": name, **sums} for name, sums in stored.items()])


def _judge(sums: dict[str, Any]) -> float | None:
    """Pass a verdict if there are enough responses; returns the evidence for a new doubt."""
    evidence = sums["other_noise"]
    verdict = doubtful(sums["responses"], evidence)
    if verdict is None:
        return None
    previous = sums["doubted"]
    sums |= {**NO_SUMS, "doubted": verdict}
    sums["verdicts"] += 1
    sums["doubts"] += verdict
    return evidence if verdict and not previous else None


def standings(session: Session, run: str, member: str | None = None) -> dict[str, Sampling]:
    """The standing of all donors with a verdict, or of one.

    Nobody is excluded unless the run says so.
    """
    doubting = func.count().filter(DoubtRow.doubted)
    query = select(DoubtRow.donor, doubting, func.count())
    query = query.where(DoubtRow.run_id == run, DoubtRow.verdicts > 0).group_by(DoubtRow.donor)
    if member is not None:
        query = query.where(DoubtRow.donor == member)
    excludes = _excludes(session, run)
    return {
        donor: Sampling(
            doubting=doubts, judging=verdicts, excluded=excludes and outvoted(doubts, verdicts)
        )
        for donor, doubts, verdicts in session.execute(query)
    }


def excluded(session: Session, run: str, member: str) -> bool:
    """Whether nobody trains on this member's responses any more."""
    if not _excludes(session, run):
        return False
    standing = standings(session, run, member).get(member)
    return standing is not None and standing.excluded


def _excludes(session: Session, run: str) -> bool:
    rules = session.get_one(RunRow, run).settings.exchange
    return rules is not None and rules.sampling_check == "exclude"

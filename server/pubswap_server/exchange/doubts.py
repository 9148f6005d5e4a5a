"""Which donors' responses were not sampled, as their receivers report it.

A receiver reports the evidence against each donor's responses. It is summed up until there are
enough for a verdict, and then from 0 again: who was honest for long has no credit from that. A
receiver may lie, so that no single one's verdicts exclude anybody, and none judges more responses
than it was given.
"""

from collections.abc import Iterable, Mapping

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from pubswap_protocol.messages import DonorEvidence, Sampling
from pubswap_server.database.tables import DoubtRow, RunRow
from pubswap_server.exchange.sampling import donor_number, doubtful
from pubswap_server.runs.events import record

FEWEST = 2  # receivers that must doubt a donor before it is excluded


def outvoted(doubting: int, judging: int) -> bool:
    """Whether most of the receivers that have passed a verdict doubt a donor, and at least two."""
    return doubting >= FEWEST and 2 * doubting > judging


def report(
    session: Session,
    run: RunRow,
    receiver: str,
    round_: int,
    found: Iterable[DonorEvidence],
    given: Mapping[str, int],
) -> None:
    """Add what a receiver has found in a round; numbers that are no donor's are left out.

    `given` counts the responses that it got, by donor: it judges no more than these.
    """
    if run.sampling_secret is None or not (reports := {one.number: one for one in found}):
        return
    numbers = {name: donor_number(run.sampling_secret, receiver, name) for name in sorted(given)}
    donors = {name: reports[number] for name, number in numbers.items() if number in reports}
    # All in one query, whatever their number: this holds the run's row.
    known = select(DoubtRow).where(
        DoubtRow.run_id == run.id, DoubtRow.receiver == receiver, DoubtRow.donor.in_(donors)
    )
    rows = {row.donor: row for row in session.scalars(known)}
    for name, one in donors.items():
        if (row := rows.get(name)) is None:
            row = DoubtRow(run_id=run.id, donor=name, receiver=receiver)
            row.responses = row.verdicts = row.doubts = 0
            row.evidence = row.hotter = 0.0
            session.add(row)
        row.responses += min(one.responses, given[name])
        row.evidence += one.evidence
        row.hotter += one.hotter
        _judge(session, row, round_)


def _judge(session: Session, row: DoubtRow, round_: int) -> None:
    evidence = max(row.evidence, row.hotter)
    verdict = doubtful(row.responses, evidence)
    if verdict is None:
        return
    if verdict and not row.doubted:
        details = {"member": row.donor, "receiver": row.receiver, "round": round_}
        record(session, row.run_id, "sampling doubted", **details, evidence=evidence)
    row.doubted = verdict
    row.verdicts += 1
    row.doubts += verdict
    row.responses, row.evidence, row.hotter = 0, 0.0, 0.0


def standings(session: Session, run: str, member: str | None = None) -> dict[str, Sampling]:
    """The donors on which a verdict was passed, all or one; nobody is excluded unless the run says
    so."""
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
    swap = session.get_one(RunRow, run).settings["swap"]
    return bool(swap.get("sampling_check") == "exclude")

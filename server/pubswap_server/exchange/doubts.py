"""Which donors' responses were not sampled, as their receivers report it.

A receiver reports the evidence against each donor's responses. It is summed up until there are
enough for a verdict, and then from 0 again: who was honest for long has no credit from that. A
receiver may lie, so that no single one's verdicts exclude anybody.
"""

from collections.abc import Iterable

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from pubswap_protocol.messages import DonorEvidence, Role, Sampling
from pubswap_server.database.tables import DoubtRow, MemberRow, RunRow
from pubswap_server.exchange.sampling import donor_number, doubtful
from pubswap_server.runs.events import record

FEWEST = 2  # receivers that must doubt a donor before it is excluded


def outvoted(doubting: int, judging: int) -> bool:
    """Whether most of the receivers that have passed a verdict doubt a donor, and at least two."""
    return doubting >= FEWEST and 2 * doubting > judging


def report(
    session: Session, run: RunRow, receiver: str, round_: int, found: Iterable[DonorEvidence]
) -> None:
    """Add what a receiver has found in a round; numbers that are no donor's are left out."""
    if run.sampling_secret is None or not (reports := {one.number: one for one in found}):
        return
    clients = select(MemberRow.name).where(
        MemberRow.run_id == run.id, MemberRow.role == Role.CLIENT, MemberRow.name != receiver
    )
    for name in session.scalars(clients.order_by(MemberRow.name)).all():
        one = reports.get(donor_number(run.sampling_secret, receiver, name))
        if one is not None:
            _add(session, run, receiver, name, round_, one)


def _add(
    session: Session, run: RunRow, receiver: str, donor: str, round_: int, found: DonorEvidence
) -> None:
    row = session.get(DoubtRow, (run.id, donor, receiver))
    if row is None:
        row = DoubtRow(run_id=run.id, donor=donor, receiver=receiver)
        row.responses = row.verdicts = row.doubts = 0
        row.evidence = 0.0
        session.add(row)
    row.responses += found.responses
    row.evidence += found.evidence
    verdict = doubtful(row.responses, row.evidence)
    if verdict is None:
        return
    if verdict and not row.doubted:
        details = {"member": donor, "receiver": receiver, "round": round_}
        record(session, run.id, "sampling doubted", **details, evidence=row.evidence)
    row.doubted = verdict
    row.verdicts += 1
    row.doubts += verdict
    row.responses, row.evidence = 0, 0.0


def standings(session: Session, run: str) -> dict[str, Sampling]:
    """All donors on which a verdict was passed; nobody is excluded unless the run says so."""
    doubting = func.count().filter(DoubtRow.doubted)
    query = select(DoubtRow.donor, doubting, func.count())
    query = query.where(DoubtRow.run_id == run, DoubtRow.verdicts > 0).group_by(DoubtRow.donor)
    swap = session.get_one(RunRow, run).settings["swap"]
    excludes = swap.get("sampling_check") == "exclude"
    return {
        donor: Sampling(
            doubting=doubts, judging=verdicts, excluded=excludes and outvoted(doubts, verdicts)
        )
        for donor, doubts, verdicts in session.execute(query)
    }


def excluded(session: Session, run: str, member: str) -> bool:
    """Whether nobody trains on this member's responses any more."""
    standing = standings(session, run).get(member)
    return standing is not None and standing.excluded

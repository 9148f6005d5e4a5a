"""Members: invited once, enrolled with a token of their own, revoked at will."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import (
    ColumnElement,
    ColumnExpressionArgument,
    SelectBase,
    exists,
    false,
    func,
    or_,
    select,
    update,
)
from sqlalchemy.orm import InstrumentedAttribute, Session

from pubswap_protocol.errors import (
    InviteExpired,
    InviteUsed,
    NameTaken,
    NotFound,
    Unauthenticated,
    WrongState,
)
from pubswap_protocol.messages import (
    Away,
    CreateInvite,
    Invite,
    Membership,
    MemberView,
    Progress,
    Role,
    Traffic,
)
from pubswap_server.clock import now, process_clock
from pubswap_server.database.tables import InviteRow, MemberRow, RunRow, SubmissionRow, UpdateRow
from pubswap_server.exchange import doubts
from pubswap_server.runs import traffic
from pubswap_server.runs.auth import MemberPrincipal, issued_token, new_secret, sha256
from pubswap_server.runs.events import record, record_sparingly
from pubswap_server.runs.quorum import heard_since

Run = str | InstrumentedAttribute[str]


def invite(session: Session, run: RunRow, request: CreateInvite) -> Invite:
    """Create an invite, replacing earlier ones; raises NameTaken if a member has the name."""
    if _named(session, run.id, request.name) is not None:
        raise NameTaken(f"Run {run.name} already has a member {request.name!r}; choose another.")
    record(session, run.id, "invited", member=request.name, role=request.role)
    return _new_invite(session, run, request, reissue=False)


def reissue(session: Session, run: RunRow, name: str, seconds: int) -> Invite:
    """Create a new invite for a member. Using it replaces the member's token.

    Raises NotFound, or WrongState for a revoked member.
    """
    row = _not_revoked(session, run, name)
    record(session, run.id, "reissued", member=name)
    request = CreateInvite(name=name, role=Role(row.role), expires_in_seconds=seconds)
    return _new_invite(session, run, request, reissue=True)


def _new_invite(session: Session, run: RunRow, request: CreateInvite, *, reissue: bool) -> Invite:
    """Create an invite, and end earlier unused ones for the same name."""
    of_the_name = InviteRow.run_id == run.id, InviteRow.name == request.name
    earlier = update(InviteRow).where(*of_the_name, InviteRow.used_at.is_(None))
    session.execute(earlier.values(expires_at=now()))
    code = new_secret()
    expires_at = now() + timedelta(seconds=request.expires_in_seconds)
    session.add(
        InviteRow(
            code_sha256=sha256(code),
            run_id=run.id,
            name=request.name,
            role=request.role,
            expires_at=expires_at,
            reissue=reissue,
        )
    )
    return Invite(invite=code, name=request.name, role=request.role, expires_at=expires_at)


def enroll(session: Session, code: str, key: str | None = None) -> Membership:
    """Use an invite; a repetition with the same key gets the same answer.

    Raises Unauthenticated, InviteUsed, InviteExpired, NameTaken, or WrongState for a revoked
    member.
    """
    row = session.get(InviteRow, sha256(code), with_for_update=True)
    if row is None:
        raise Unauthenticated("There is no such invite; copy the whole code.")
    token = issued_token(code, key)
    member = _named(session, row.run_id, row.name)
    if member is not None and member.active and member.token_sha256 == sha256(token):
        return _membership(session, member, token)
    if row.used_at is not None:
        raise InviteUsed("This invite was already used; ask the operator for a new one.")
    if row.expires_at <= now():
        raise InviteExpired(
            "This invite has expired, or a newer one has replaced it; ask the operator."
        )
    if member is None:
        member = MemberRow(run_id=row.run_id, name=row.name, role=row.role)
        session.add(member)
    elif not row.reissue:
        raise NameTaken(f"A member {row.name!r} has enrolled already, with another invite.")
    elif not member.active:
        raise WrongState(f"{row.name} was revoked for good; ask the operator.")
    row.used_at = now()
    member.token_sha256, member.accepted = sha256(token), False
    if not row.reissue and row.role == Role.CLIENT:
        member.joining = session.get_one(RunRow, row.run_id).round > 0
    record(session, row.run_id, "enrolled", member=row.name, role=row.role)
    return _membership(session, member, token)


def accept(session: Session, member: MemberPrincipal, accepted: bool) -> None:
    """Note whether a member's hello matched the run. A matching one brings an away member back.

    The member is in the round under way. If it was absent when the round began and others have
    handed something in since, it is in the next one, and nobody waits for it until then.
    """
    row = session.get_one(MemberRow, member.id)
    if accepted and row.away is not None:
        record_sparingly(session, row.run_id, "back", member=row.name)
        row.away = row.away_detail = None
    row.accepted = accepted
    if not (accepted and row.joining):
        return
    round_ = session.get_one(RunRow, row.run_id).round
    handed_in = (
        session.scalar(select(exists().where(table.run_id == row.run_id, table.round == round_)))
        for table in (UpdateRow, SubmissionRow)
    )
    if not any(handed_in):
        admit(session, row.run_id)


def ask_again(session: Session, run: str) -> None:
    """Require another hello from each member before it goes on."""
    session.execute(update(MemberRow).where(MemberRow.run_id == run).values(accepted=False))


def admit(session: Session, run: str) -> None:
    """Add members that came during the round under way to it."""
    condition = (*_belongs(run), MemberRow.joining, MemberRow.away.is_(None), MemberRow.accepted)
    for row in session.scalars(select(MemberRow).where(*condition).order_by(MemberRow.name)):
        row.joining = False
        record(session, run, "joined", member=row.name)


def begin_round(session: Session, run: str) -> None:
    """Begin a round with the members that are present; the others join when they come."""
    admit(session, run)
    gone = or_(MemberRow.away.is_not(None), MemberRow.accepted.is_(False))
    absent = update(MemberRow).where(*_belongs(run), gone)
    session.execute(absent.values(joining=True))


def joining(session: Session, run: str) -> frozenset[str]:
    """The clients that are in the next round, but not in the one under way."""
    query = select(MemberRow.name).where(*_belongs(run), MemberRow.joining)
    return frozenset(session.scalars(query))


def away(session: Session, run: RunRow, member: MemberPrincipal, reason: Away) -> None:
    """Mark a member whose own policy refuses as away: nobody waits for it until its next hello.

    As with a suspended member, what it has handed in before counts. The log gets the first reason
    with each code.
    """
    row = session.get_one(MemberRow, member.id)
    if row.away != reason.code:
        record_sparingly(session, run.id, "away", member=row.name, **reason.model_dump())
    row.away, row.away_detail = reason.code, reason.detail


def _membership(session: Session, row: MemberRow, token: str) -> Membership:
    run = session.get_one(RunRow, row.run_id)
    return Membership(
        run=run.id, run_name=run.name, name=row.name, role=Role(row.role), token=token
    )


def revoke(session: Session, run: RunRow, name: str) -> None:
    """Invalidate a member's token for good; raises NotFound."""
    _existing(session, run, name).active = False
    record(session, run.id, "revoked", member=name)


def suspend(session: Session, run: RunRow, name: str, suspended: bool = True) -> None:
    """Suspend a member, so that it is refused and nobody waits for it, or reinstate it.

    What it has handed in before counts, also in the round and the exchanges under way. It was
    checked like any other's, and without it a round would depend on when it was closed. Raises
    NotFound, or WrongState for a revoked member.
    """
    row = _not_revoked(session, run, name)
    if row.suspended != suspended:
        row.suspended = suspended
        record(session, run.id, "suspended" if suspended else "reinstated", member=name)


def active_clients(session: Session, run: str) -> set[str]:
    """The names of the clients in the round: not revoked, suspended, away or joining later."""
    return set(session.scalars(select(MemberRow.name).where(*_takes_part(run))))


def enrolled_clients(session: Session, run: str) -> set[str]:
    """The names of the clients that take part now, or will when they are back."""
    return set(session.scalars(select(MemberRow.name).where(*_belongs(run))))


def away_clients(session: Session, run: str) -> list[tuple[str, str]]:
    """The clients kept away by their own policy, by name, with the codes of the reasons."""
    query = select(MemberRow.name, MemberRow.away).where(*_belongs(run))
    rows = session.execute(query.where(MemberRow.away.is_not(None)).order_by(MemberRow.name))
    return [(name, str(code)) for name, code in rows]


@dataclass(frozen=True, slots=True)
class MemberReport:
    """A client's last heartbeat, and for how long it has not been heard from."""

    progress: Progress | None
    unseen_seconds: float | None

    def step(self, round_: int) -> int:
        """The steps of this round that it has made."""
        progress = self.progress
        return progress.step if progress is not None and progress.round == round_ else 0


def reports(session: Session, run: str) -> dict[str, MemberReport]:
    """The last heartbeats of the clients that take part now, by name."""
    query = select(MemberRow.name, MemberRow.progress, MemberRow.last_seen).where(*_takes_part(run))
    return {
        name: MemberReport(
            Progress.model_construct(**progress) if progress else None, _unseen_for(seen)
        )
        for name, progress, seen in session.execute(query.order_by(MemberRow.name))
    }


def fewest_steps(session: Session, run: str, round_: int) -> int:
    """The fewest steps that a client has made of a round, of those that have begun it; or 0."""
    step = MemberRow.progress["step"].as_integer()
    begun = MemberRow.progress["round"].as_integer() == round_, step > 0
    return session.scalar(select(func.min(step)).where(*_takes_part(run), *begun)) or 0


def client_names(session: Session, run: str) -> list[str]:
    """The names of all clients in order, whatever has become of them."""
    query = select(MemberRow.name).where(MemberRow.run_id == run, MemberRow.role == Role.CLIENT)
    return list(session.scalars(query.order_by(MemberRow.name)))


def held(session: Session, run: str) -> list[tuple[str, int]]:
    """The clients that hold something in a pause, by name, with their `Progress.holds`."""
    query = select(MemberRow.name, MemberRow.progress).where(*_takes_part(run))
    rows = session.execute(query.order_by(MemberRow.name))
    holds = ((name, progress and progress.get("holds")) for name, progress in rows)
    return [(name, number) for name, number in holds if number is not None]


def suspended(session: Session, run: str) -> list[str]:
    """The names of the suspended members."""
    query = select(MemberRow.name).where(MemberRow.run_id == run, MemberRow.active)
    return list(session.scalars(query.where(MemberRow.suspended).order_by(MemberRow.name)))


def outstanding(session: Session, run: str, arrived: SelectBase) -> int:
    """The number of clients that take part now and have not arrived."""
    query = select(func.count()).where(*_takes_part(run), MemberRow.name.not_in(arrived))
    return session.scalars(query).one()


def expected(
    session: Session, run: str, arrived: SelectBase, deadline_seconds: float
) -> tuple[int, int]:
    """The number of clients that take part now and have not arrived, and how many are unheard.

    The latter were not heard from within a deadline of this length.
    """
    since = _heard_since(deadline_seconds)
    unheard = false() if since is None else _unseen(since)
    query = select(func.count(), func.count().filter(unheard))
    return (*session.execute(query.where(*_takes_part(run), MemberRow.name.not_in(arrived))).one(),)


def heard(session: Session, run: str, arrived: SelectBase, deadline_seconds: float) -> list[str]:
    """The clients that `expected` counts and that were heard from, by name."""
    since = _heard_since(deadline_seconds)
    query = select(MemberRow.name).where(*_takes_part(run), MemberRow.name.not_in(arrived))
    if since is not None:
        query = query.where(MemberRow.last_seen >= since)
    return list(session.scalars(query.order_by(MemberRow.name)))


def _heard_since(deadline_seconds: float) -> datetime | None:
    return heard_since(now(), process_clock().listening_since, deadline_seconds)


def silent(session: Session, run: str, arrived: SelectBase, cutoff: datetime) -> list[str]:
    """The clients that take part, have not arrived, and were last seen before `cutoff`."""
    query = select(MemberRow.name).where(*silent_in(run, cutoff), MemberRow.name.not_in(arrived))
    return list(session.scalars(query.order_by(MemberRow.name)))


def silent_in(run: Run, cutoff: datetime) -> tuple[ColumnExpressionArgument[bool], ...]:
    """The condition for a run's clients that take part and were last seen before `cutoff`."""
    return *_takes_part(run), _unseen(cutoff)


def _unseen(since: datetime) -> ColumnElement[bool]:
    return or_(MemberRow.last_seen.is_(None), MemberRow.last_seen < since)


def _takes_part(run: Run) -> tuple[ColumnExpressionArgument[bool], ...]:
    return *_belongs(run), MemberRow.away.is_(None), MemberRow.joining.is_(False)


def _belongs(run: Run) -> tuple[ColumnExpressionArgument[bool], ...]:
    return (
        MemberRow.run_id == run,
        MemberRow.role == Role.CLIENT,
        MemberRow.active,
        MemberRow.suspended.is_(False),
    )


def count(session: Session, run: str) -> int:
    return session.scalars(select(func.count()).where(MemberRow.run_id == run)).one()


def views(session: Session, run: str, first: int | None = None) -> list[MemberView]:
    """The members by name; only the first `first`, if given."""
    query = select(MemberRow).where(MemberRow.run_id == run).order_by(MemberRow.name).limit(first)
    return _views(session, run, session.scalars(query))


def view_of(session: Session, member: MemberRow) -> MemberView:
    """One member."""
    return _views(session, member.run_id, [member])[0]


def _views(session: Session, run: str, rows: Iterable[MemberRow]) -> list[MemberView]:
    sizes, standings = traffic.by_member(session, run), doubts.standings(session, run)
    return [
        MemberView(
            name=row.name,
            role=Role(row.role),
            active=row.active,
            suspended=row.suspended,
            away=Away(code=row.away, detail=row.away_detail or row.away) if row.away else None,
            accepted=row.accepted,
            joining=row.joining,
            unverified=row.unverified,
            last_seen=row.last_seen,
            unseen_seconds=_unseen_for(row.last_seen),
            progress=Progress(**row.progress) if row.progress else None,
            traffic=sizes.get(row.name, Traffic()),
            sampling=standings.get(row.name),
        )
        for row in rows
    ]


def _unseen_for(last_seen: datetime | None) -> float | None:
    return max(0.0, (now() - last_seen).total_seconds()) if last_seen else None


def _existing(session: Session, run: RunRow, name: str) -> MemberRow:
    row = _named(session, run.id, name)
    if row is None:
        raise NotFound(f"Run {run.name} has no member {name!r}.")
    return row


def _not_revoked(session: Session, run: RunRow, name: str) -> MemberRow:
    row = _existing(session, run, name)
    if not row.active:
        raise WrongState(f"{name} was revoked for good; invite it under another name.")
    return row


def _named(session: Session, run: str, name: str) -> MemberRow | None:
    return session.scalar(select(MemberRow).where(MemberRow.run_id == run, MemberRow.name == name))

"""Runs: creation, lookup and moves between states."""

import secrets
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from pydantic import ValidationError
from sqlalchemy import and_, or_, select
from sqlalchemy.orm import Session

from pubswap_protocol.errors import (
    BaseModelMismatch,
    Conflict,
    IdempotencyMismatch,
    Invalid,
    InvalidProblems,
    InvalidSettings,
    NameTaken,
    RoundClosed,
    RunPaused,
    UnknownRun,
    WrongState,
    first_fault,
)
from pubswap_protocol.messages import (
    ChangeRun,
    CreateRun,
    Digest,
    Hello,
    RunState,
    RunView,
    SetKind,
)
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.safetensors_header import MAX_HEADER_BYTES
from pubswap_protocol.tensors.update_encoding import largest_update
from pubswap_protocol.terms import make_terms, required, with_clients
from pubswap_protocol.verifiers import verifier_version
from pubswap_protocol.verifiers.verifier import Verifier
from pubswap_server.database.engine import held
from pubswap_server.database.tables import RoundRow, RunRow, SetRow
from pubswap_server.runs import history, members, retention
from pubswap_server.runs.auth import (
    MemberPrincipal,
    Operator,
    Principal,
    require_own,
    require_still_good,
    sha256,
)
from pubswap_server.runs.events import record
from pubswap_server.runs.progress import steps
from pubswap_server.runs.state import ENDED, RunStatus, cancelled, opened, started

Move = Callable[[RunStatus], RunStatus]


def create(session: Session, request: CreateRun, key: str | None = None) -> RunRow:
    """Create a run; a repetition with the same key returns the first one.

    Raises NameTaken while another run of this name is unfinished, IdempotencyMismatch for a key
    that was used for another run, InvalidSettings for a verifier that is not installed.
    """
    version = verifier_version(request.settings.verifier)
    id_ = sha256(key)[:16] if key is not None else secrets.token_hex(8)
    existing = session.get(RunRow, id_)
    if existing is not None:
        if (existing.name, existing.settings) != (request.name, request.settings):
            raise IdempotencyMismatch(f"This key was used for the run {existing.name!r}.")
        return existing
    check_name(session, request.name)
    row = RunRow(
        id=id_,
        name=request.name,
        state=RunState.CREATED,
        settings=request.settings,
        model=request.model,
        sampling_secret=_sampling_secret(request.settings),
        verifier_version=version,
    )
    session.add(row)
    session.flush()
    record(session, row.id, "created", name=request.name)
    return row


def revise(session: Session, run: RunRow, request: CreateRun) -> None:
    """Give a run that is not open yet another name and other settings; raises WrongState."""
    opened(status_of(run))
    if run.name != request.name:
        check_name(session, request.name)
    run.name, run.settings = request.name, request.settings
    run.sampling_secret = _sampling_secret(request.settings)
    run.verifier_version = verifier_version(request.settings.verifier)
    record(session, run.id, "revised", name=request.name)


def _sampling_secret(settings: RunSettings) -> str | None:
    rules = settings.exchange
    checked = rules is not None and rules.sampling_check != "off"
    return secrets.token_hex(32) if checked else None


def check_name(session: Session, name: str) -> None:
    """Raises NameTaken while a run of this name is unfinished."""
    clash = session.scalar(select(RunRow).where(RunRow.name == name, RunRow.state.not_in(ENDED)))
    if clash is not None:
        left = " If `pubswap run create` was interrupted, cancel that run: `pubswap run cancel"
        remedy = f"{left} {name}`." if clash.state == RunState.CREATED else ""
        raise NameTaken(f"The run {name!r} is {clash.state}; choose another name.{remedy}")


def find(session: Session, reference: str, principal: Principal, lock: bool = False) -> RunRow:
    """Find a run: for the operator by id or else the newest by name; for a member by id.

    Raises UnknownRun, also for a run that is not the member's, and Unauthenticated or Suspended for
    a member that was revoked or suspended since it was authenticated.
    """
    if isinstance(principal, MemberPrincipal):
        require_own(reference, principal)
        run = by_id(session, reference, lock)
        require_still_good(session, principal)
        return run
    query = select(RunRow).where(or_(RunRow.id == reference, RunRow.name == reference))
    query = query.order_by((RunRow.id == reference).desc(), RunRow.created_at.desc()).limit(1)
    row = session.scalar(query.with_for_update() if lock else query)
    if row is None:
        raise UnknownRun(f"There is no run {reference!r} for this token.")
    return row


def by_id(session: Session, run: str, lock: bool = False) -> RunRow:
    """The run with this id, for work outside of requests; raises UnknownRun."""
    row = session.get(RunRow, run, with_for_update=lock or None)
    if row is None:
        raise UnknownRun(f"The run {run} was deleted.")
    if lock:
        held(session).add(run)
    return row


def largest_update_of(run: RunRow) -> int:
    """The most bytes that an update of this run may have."""
    # With room for a header, so that a file of other tensors is refused for those, not its size.
    return largest_update(run.model.layout, run.settings) + MAX_HEADER_BYTES


def refusal_of(run: RunRow, hello: Hello) -> Conflict | None:
    """Why to refuse a member with this base model or verifier, or None."""
    try:
        run.model.check_same(hello)
    except BaseModelMismatch as error:
        return error
    version = verifier_version(run.settings.verifier)
    if hello.verifier_version == version:
        return None
    return Conflict(
        f"The run's verifier is {version}, yours is {hello.verifier_version}; install the same "
        "versions."
    )


def ask_again(session: Session) -> None:
    """Ask for another hello from the members of each run whose verifier has a new version.

    Called when a coordinator starts, because it may have been upgraded. A member whose verifier is
    out of date takes no part until it says hello again with the current version.
    """
    going = select(RunRow).where(RunRow.state != RunState.CANCELLED).with_for_update()
    for row in filter(attrgetter("readable"), session.scalars(going)):
        previous, current = row.verifier_version, _installed_version(row.settings.verifier)
        if current in (None, previous):
            continue
        row.verifier_version = current
        members.ask_again(session, row.id)
        record(session, row.id, "verifier changed", before=previous, now=current)


def status_of(run: RunRow) -> RunStatus:
    return RunStatus(RunState(run.state), run.paused, run.round, run.settings.rounds)


def require_since(run: RunRow, rollbacks: int | None) -> None:
    """Raises RoundClosed if the run was rolled back since it had `rollbacks`, if given."""
    if rollbacks not in (None, run.rollbacks):
        raise RoundClosed(f"The run went back, and round {run.round} was begun again.")


def require_resumed(run: RunRow) -> None:
    """Raises RunPaused while the run is paused."""
    if run.paused:
        raise RunPaused(
            "The operator has paused the run; hold this until it is resumed, and then send it. "
            "Nothing becomes late meanwhile."
        )


def move(session: Session, run: RunRow, transition: Move, **details: Any) -> None:
    """Apply a transition of the state machine and log it; raises WrongState."""
    status = transition(status_of(run))
    if (status.state, status.round) != (run.state, run.round) or status.paused != run.paused:
        kind = transition.__name__.replace("_", " ")
        record(session, run.id, kind, state=status.state, round=status.round, **details)
    if status.round != run.round or status.state in ENDED:
        retention.free_unused(session, run.id, ended=status.state in ENDED)
    if (status.state, status.round) != (run.state, run.round):
        run.failure = None
    if 0 < run.round < status.round:  # the first round waits for all that have enrolled
        members.begin_round(session, run.id)
        steps.forget_old(session, run, status.round)
    run.state, run.paused, run.round = status.state, status.paused, status.round
    if status.state is RunState.TRAINING and session.get(RoundRow, (run.id, run.round)) is None:
        session.add(RoundRow(run_id=run.id, round=run.round))


def cancel(session: Session, run: RunRow) -> None:
    """End a run for good, unless it is cancelled already; raises WrongState."""
    if run.state != RunState.CANCELLED:
        move(session, run, cancelled)


def open_run(session: Session, run: RunRow, initial: Digest) -> None:
    """Open a run that has all its files, with its initial adapter, and store its terms."""
    if run.state == RunState.OPEN:
        return
    run.terms = make_terms(
        run.name,
        run.settings.model_dump(mode="json"),
        run.model.model_dump(mode="json"),
        run.verifier_version,
        sets_of(session, run)[SetKind.PUBLIC].digest,
    )
    session.merge(RoundRow(run_id=run.id, round=0, adapter=initial))
    move(session, run, opened)


def check_complete(session: Session, run: RunRow) -> None:
    """Raises WrongState or InvalidProblems, naming what is missing, unless the run can open."""
    if run.state == RunState.OPEN:
        return  # already open, by a request whose response was lost
    opened(status_of(run))
    if run.tokenizer is None:
        raise WrongState("Send the base model's tokenizer.json first.")
    sets = sets_of(session, run)
    missing = [kind for kind in SetKind if kind not in sets]
    if missing:
        raise WrongState(f"Send the {' and the '.join(missing)} set first.")
    check_public(run.settings, sets[SetKind.PUBLIC].problems)


def check_public(settings: RunSettings, problems: int) -> None:
    """Raises InvalidProblems for a public set with fewer problems than a public step takes."""
    needed = settings.grpo.prompts_per_step
    if settings.exchange and problems < needed:
        raise InvalidProblems(
            f"The public set holds {problems} problems; a public step takes {needed}."
        )


def sets_of(session: Session, run: RunRow) -> dict[SetKind, SetRow]:
    rows = session.scalars(select(SetRow).where(SetRow.run_id == run.id))
    return {SetKind(row.kind): row for row in rows}


def change(session: Session, run: RunRow, change: ChangeRun) -> None:
    """Change settings; raises WrongState once the run has begun, Invalid if they do not fit."""
    if run.state not in (RunState.CREATED, RunState.OPEN):
        raise WrongState(f"The run is {run.state}; its settings can be changed before it starts.")
    previous = run.settings.clients
    if change.clients == previous:
        return
    try:
        run.settings = RunSettings(**run.settings.model_dump() | change.model_dump())
    except ValidationError as error:
        raise Invalid(f"clients = {change.clients}: {first_fault(error)}") from None
    if run.terms is not None:
        run.terms = with_clients(run.terms, change.clients)
    record(session, run.id, "set", clients=change.clients, before=previous)


def start(session: Session, run: RunRow) -> None:
    """Begin round 1, unless it has begun; raises WrongState while clients are missing."""
    if run.round > 0 and run.state not in ENDED:
        return
    settings = run.settings
    needed = settings.members.minimum or settings.clients
    clients = sorted(members.enrolled_clients(session, run.id))
    if run.state == RunState.OPEN and len(clients) < needed:
        raise WrongState(
            f"{len(clients)} of {needed} clients have enrolled ({', '.join(clients) or 'none'}); "
            f"invite the others, or start with fewer: pubswap run resize {run.name} N."
        )
    move(session, run, started)


def _installed_version(verifier: Verifier) -> str | None:
    """The verifier's version; None if its library is gone, because its runs are still shown."""
    try:
        return verifier_version(verifier)
    except InvalidSettings:
        return None


def view(session: Session, run: RunRow, principal: Principal | None = None) -> RunView:
    """The run as the principal may see it; without one, as anybody may."""
    latest, best = history.scores(session, run.id)
    return RunView(
        id=run.id,
        name=run.name,
        state=RunState(run.state),
        paused=run.paused,
        round=run.round,
        waiting_for=run.waiting_for if status_of(run).state not in ENDED else None,
        settings=run.settings,
        requires=required(run.settings),
        verifier_version=_installed_version(run.settings.verifier),
        model=run.model,
        terms=run.terms if isinstance(principal, MemberPrincipal) else None,
        created_at=run.created_at,
        latest=latest,
        best=best,
        members=members.views(session, run.id) if isinstance(principal, Operator) else [],
    )


def page(session: Session, after: str | None, limit: int) -> list[RunView]:
    """The runs created before the run `after`, newest first, without their members.

    Without those of earlier versions that this one cannot read. Only an empty page is the last.
    """
    query = select(RunRow).order_by(RunRow.created_at.desc(), RunRow.id.desc()).limit(limit)
    if after is not None:
        last = session.get(RunRow, after)
        if last is None:
            raise UnknownRun(f"There is no run {after!r}; give the last one that you have.")
        same_time = and_(RunRow.created_at == last.created_at, RunRow.id < last.id)
        query = query.where(or_(RunRow.created_at < last.created_at, same_time))
    rows = session.scalars(query).all()
    views = [view(session, row) for row in rows if row.readable]
    return page(session, rows[-1].id, limit) if rows and not views else views

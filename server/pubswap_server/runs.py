"""Runs: created, looked up, moved."""

import secrets
from collections.abc import Callable
from typing import Any

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from pubswap_protocol.adapter import AdapterLayout
from pubswap_protocol.errors import InvalidProblems, NameTaken, UnknownRun, WrongState
from pubswap_protocol.factors import sent_layout
from pubswap_protocol.messages import (
    CreateRun,
    Digest,
    Drift,
    Evaluation,
    RoundSummary,
    RunState,
    RunView,
    SetKind,
    SwapSummary,
    Traffic,
)
from pubswap_protocol.model import ModelCard
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.verifiers import check_verifier
from pubswap_server import members, traffic
from pubswap_server.auth import Member, Operator, Principal, require_still_good
from pubswap_server.events import record
from pubswap_server.state import ENDED, RunStatus, opened, started
from pubswap_server.tables import RoundRow, RunRow, SetRow, SwapRow, UpdateRow

Move = Callable[[RunStatus], RunStatus]


def create(session: Session, wanted: CreateRun) -> RunRow:
    """A new run; raises NameTaken while another of this name is unfinished."""
    check_verifier(wanted.settings.verifier)
    clash = session.scalar(
        select(RunRow).where(RunRow.name == wanted.name, RunRow.state.not_in(ENDED))
    )
    if clash is not None:
        raise NameTaken(f"The run {wanted.name!r} is {clash.state}; choose another name.")
    row = RunRow(
        id=secrets.token_hex(8),
        name=wanted.name,
        state=RunState.CREATED,
        settings=wanted.settings.model_dump(mode="json"),
        model=wanted.model.model_dump(mode="json"),
    )
    session.add(row)
    session.flush()
    record(session, row.id, "created", name=wanted.name)
    return row


def find(session: Session, reference: str, principal: Principal, lock: bool = False) -> RunRow:
    """The run: by id or name for the operator, by its own id for a member.

    Raises UnknownRun, also for a run that is not the member's, and Unauthenticated or Suspended for
    a member that was revoked or suspended since it was authenticated.
    """
    query = select(RunRow).where(RunRow.id == reference)
    if isinstance(principal, Operator):
        query = select(RunRow).where(or_(RunRow.id == reference, RunRow.name == reference))
    query = query.order_by(RunRow.created_at.desc()).limit(1)
    row = session.scalar(query.with_for_update() if lock else query)
    if row is None or (isinstance(principal, Member) and row.id != principal.run):
        raise UnknownRun(f"There is no run {reference!r} for this token.")
    if isinstance(principal, Member):
        require_still_good(session, principal)
    return row


def settings_of(run: RunRow) -> RunSettings:
    """The run's settings."""
    return RunSettings.model_validate(run.settings)


def model_of(run: RunRow) -> ModelCard:
    """The run's base model."""
    return ModelCard.model_validate(run.model)


def sent_layout_of(run: RunRow) -> AdapterLayout:
    """What a client sends in a round."""
    return sent_layout(model_of(run).layout, settings_of(run).aggregation.rule)


def status_of(run: RunRow) -> RunStatus:
    """Where the run is."""
    return RunStatus(RunState(run.state), run.paused, run.round, run.settings["rounds"])


def move(session: Session, run: RunRow, transition: Move, **details: Any) -> None:
    """Apply a transition of the state machine and log it; raises WrongState."""
    status = transition(status_of(run))
    if (status.state, status.round) != (run.state, run.round) or status.paused != run.paused:
        kind = transition.__name__.replace("_", " ")
        record(session, run.id, kind, state=status.state, round=status.round, **details)
    run.state, run.paused, run.round = status.state, status.paused, status.round
    if status.state is RunState.TRAINING and session.get(RoundRow, (run.id, run.round)) is None:
        session.add(RoundRow(run_id=run.id, round=run.round))


def open_run(session: Session, run: RunRow, initial: Digest) -> None:
    """Open a run whose files are all there, with its initial adapter."""
    session.add(RoundRow(run_id=run.id, round=0, adapter=initial))
    move(session, run, opened)


def check_complete(session: Session, run: RunRow) -> None:
    """Raises WrongState or InvalidProblems, saying what is missing, unless a run can be opened."""
    opened(status_of(run))
    if run.tokenizer is None:
        raise WrongState("Send the base model's tokenizer.json first.")
    sets = {kind: session.get(SetRow, (run.id, kind)) for kind in SetKind}
    missing = [kind for kind, row in sets.items() if row is None]
    if missing:
        raise WrongState(f"Send the {' and the '.join(missing)} set first.")
    settings, public = settings_of(run), sets[SetKind.PUBLIC]
    if settings.method == "pubswap" and public is not None:
        needed = settings.grpo.prompts_per_step
        if public.problems < needed:
            raise InvalidProblems(
                f"The public set holds {public.problems} problems; a public step takes {needed}."
            )


def start(session: Session, run: RunRow) -> None:
    """Begin round 1; raises WrongState while clients are missing."""
    wanted = settings_of(run).clients
    there = members.active_clients(session, run.id)
    if run.state == RunState.OPEN and len(there) < wanted:
        raise WrongState(
            f"{len(there)} of {wanted} clients have enrolled ({', '.join(sorted(there)) or 'none'})"
            "; invite the others, or set `clients` lower in a new run."
        )
    move(session, run, started)


def view(session: Session, run: RunRow, principal: Principal) -> RunView:
    """The run as the principal may see it."""
    return RunView(
        id=run.id,
        name=run.name,
        state=RunState(run.state),
        paused=run.paused,
        round=run.round,
        waiting_for=run.waiting_for if status_of(run).state not in ENDED else None,
        settings=settings_of(run),
        model=model_of(run),
        created_at=run.created_at,
        rounds=_rounds(session, run.id),
        members=members.views(session, run.id) if isinstance(principal, Operator) else [],
    )


def _rounds(session: Session, run: str) -> list[RoundSummary]:
    sizes = traffic.by_round(session, run)
    updates = list(session.scalars(select(UpdateRow).where(UpdateRow.run_id == run)))
    swaps = list(session.scalars(select(SwapRow).where(SwapRow.run_id == run)))
    rows = session.scalars(select(RoundRow).where(RoundRow.run_id == run).order_by(RoundRow.round))
    return [
        RoundSummary(
            round=row.round,
            adapter=row.adapter,
            updates=sum(u.round == row.round and not u.late for u in updates),
            drift=Drift(**row.drift) if row.drift else None,
            evaluation=Evaluation(**row.evaluation) if row.evaluation else None,
            swaps=[
                SwapSummary(**swap.summary)
                for swap in sorted(swaps, key=lambda swap: swap.swap)
                if swap.round == row.round and swap.summary
            ],
            traffic=sizes.get(row.round, Traffic()),
        )
        for row in rows
    ]


def require_created(run: RunRow) -> None:
    """Raises WrongState once a run is open: its sets no longer change."""
    if run.state != RunState.CREATED:
        raise WrongState(f"The run is {run.state}; its sets can be sent before it is opened only.")

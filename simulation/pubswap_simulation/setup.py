"""What an operator does before a run begins: create it, invite and enrol its members, start it."""

import shutil
from pathlib import Path

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.operator.runfile import create_and_open
from pubswap_client.state.files import write_whole
from pubswap_client.state.membership import StoredMembership, load_membership, save_membership
from pubswap_protocol import paths
from pubswap_protocol.messages import CreateInvite, Role
from pubswap_simulation.coordinator import Coordinator
from pubswap_simulation.job import Job

EVALUATOR = "evaluator"
_FOUNDED = "founded"


def cleared(work: Path) -> Path:
    """The folder, emptied unless the run in it was founded to the end."""
    if not (work / _FOUNDED).exists():
        shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    return work


def founded(coordinator: Coordinator, operator: CoordinatorClient, job: Job, work: Path) -> str:
    """The id of the job's run, begun now or by an earlier process."""
    mark = work / _FOUNDED
    if mark.exists():
        return mark.read_text(encoding="utf-8")
    run = create_and_open(operator, job.prepared()).id
    for name in job.private:
        _enroll(coordinator, operator, run, name, Role.CLIENT, work)
    _enroll(coordinator, operator, run, EVALUATOR, Role.EVALUATOR, work)
    operator.move_run(run, paths.RUN_START)
    write_whole(mark, run.encode())
    return run


def state_of(work: Path, name: str) -> Path:
    """A member's state folder."""
    return work / "members" / name


def token_of(work: Path, name: str) -> str:
    """A member's token."""
    return load_membership(state_of(work, name)).membership.token


def _enroll(
    coordinator: Coordinator,
    operator: CoordinatorClient,
    run: str,
    name: str,
    role: Role,
    work: Path,
) -> None:
    invite = operator.invite(run, CreateInvite(name=name, role=role))
    with coordinator.client() as anonymous:
        membership = anonymous.enroll(invite.invite)
    stored = StoredMembership(coordinator=operator.url, membership=membership)
    save_membership(state_of(work, name), stored)

"""The operator's part before a run begins: create it, invite and enrol its members, start it."""

import shutil
from pathlib import Path

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.recipes.runfile import create_and_open
from pubswap_client.state.membership import StoredMembership, save_membership
from pubswap_protocol import paths
from pubswap_protocol.files import write_whole
from pubswap_protocol.messages import CreateInvite, Role
from pubswap_simulation.coordinator import Coordinator
from pubswap_simulation.job import Job

EVALUATOR = "evaluator"
_RUN_ID = "founded"  # there once the run has begun


def resumable_folder(work: Path) -> Path:
    """The folder, emptied unless the run in it has begun."""
    if not (work / _RUN_ID).exists():
        shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    return work


def begin_run(coordinator: Coordinator, operator: CoordinatorClient, job: Job, work: Path) -> str:
    """The id of the job's run, begun now or by an earlier process."""
    begun = work / _RUN_ID
    if begun.exists():
        return begun.read_text(encoding="utf-8")
    run = create_and_open(operator, job.prepared()).id
    roles = dict.fromkeys(job.private, Role.CLIENT) | {EVALUATOR: Role.EVALUATOR}
    for name, role in roles.items():
        invite = operator.invite(run, CreateInvite(name=name, role=role))
        with coordinator.client() as anonymous:
            membership = anonymous.enroll(invite.invite)
        stored = StoredMembership(coordinator=operator.url, membership=membership)
        save_membership(member_state(work, name), stored)
    operator.move_run(run, paths.RUN_START)
    write_whole(begun, run.encode())
    return run


def member_state(work: Path, name: str) -> Path:
    """A member's state folder."""
    return work / "members" / name

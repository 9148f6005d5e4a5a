"""The state folder: may we write there, is it in use, and is there room for checkpoints."""

import os
import shutil
from pathlib import Path

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.coordinator.retry import ONCE
from pubswap_client.doctor.findings import Finding, failure, of_error, ok, warning
from pubswap_client.operator.tables import size_text
from pubswap_client.state.lock import holder
from pubswap_client.state.membership import StoredMembership
from pubswap_protocol import paths
from pubswap_protocol.errors import PubSwapError, Unauthenticated, UnknownRun, UnknownSetting
from pubswap_protocol.messages import Role, RunState, RunView
from pubswap_protocol.required import check_known
from pubswap_protocol.tensors.adapter import AdapterLayout

FOLDER, MEMBERSHIP, DAEMON, DISK = "state folder", "membership", "daemon", "disk"
# The adapter and AdamW's two moments; a new file is complete before the old one goes.
_ADAPTERS_KEPT = 3


def check_folder(state: Path) -> Finding:
    """It is there and ours to write in; nothing is written to find out."""
    if not state.is_dir():
        return failure(
            FOLDER,
            f"{state} is no folder",
            "Give the one that `pubswap client enroll` made, with --state, or enrol first.",
        )
    if not os.access(state, os.W_OK | os.X_OK):
        return failure(
            FOLDER,
            f"{state} cannot be written to",
            f"Make it yours: chown -R $(id -un) {state}, and chmod u+rwx {state}.",
        )
    return ok(FOLDER, f"{state} can be written to")


def check_membership(stored: StoredMembership) -> Finding:
    """It is a training organisation's."""
    member = stored.membership
    found = f"{member.name} in the run {member.run_name} at {stored.coordinator}"
    if member.role is not Role.CLIENT:
        return failure(
            MEMBERSHIP,
            f"{found}, with the role {member.role}",
            "This state folder is for `pubswap evaluate`. To train, ask the operator for an "
            "invite with the role client, and enrol with another --state.",
        )
    return ok(MEMBERSHIP, found)


def check_daemon(state: Path) -> Finding:
    """No other daemon works on this folder; asked without taking its lock."""
    other = holder(state)
    if other is None:
        return ok(DAEMON, "no other one uses this state folder")
    return warning(
        DAEMON,
        f"process {other} is training with this state folder",
        f"If you mean to start anew, stop it first: kill {other}. It loses no finished step.",
    )


def check_disk(state: Path, layout: AdapterLayout) -> Finding:
    """There is room for the checkpoint that follows each step, while the last one is there."""
    checkpoint = _ADAPTERS_KEPT * layout.file_bytes
    kept = state / "progress" / "checkpoint.safetensors"
    there = kept.stat().st_size if kept.exists() else 0
    free, wanted = shutil.disk_usage(state).free, 2 * checkpoint - min(there, checkpoint)
    found = f"{size_text(free)} free; a checkpoint takes {size_text(checkpoint)}"
    if free < wanted:
        return failure(
            DISK,
            f"{found}, twice while it is replaced",
            f"Free {size_text(wanted - free)} there, or move {state} to a larger disk.",
        )
    return ok(DISK, found)


COORDINATOR, RUN = "coordinator", "token and run"
_OVER = (RunState.FINISHED, RunState.CANCELLED)


def check_coordinator(stored: StoredMembership) -> Finding:
    """It answers, with our protocol's version."""
    with CoordinatorClient(stored.coordinator, backoff=ONCE, tls=stored.tls) as api:
        try:
            version = api.version()
            api.check_version()
        except PubSwapError as error:
            return of_error(
                COORDINATOR,
                error,
                "See that the address in membership.json is the operator's, and that a firewall or "
                "proxy lets this machine reach it; then ask the operator whether it runs."
                if error.retryable
                else "Install the version of pubswap that the operator runs.",
            )
    return ok(
        COORDINATOR,
        f"{stored.coordinator} answers: pubswap {version.software}, protocol {version.protocol} "
        f"(ours is {paths.PROTOCOL_VERSION})",
    )


def ask_run(stored: StoredMembership) -> tuple[Finding, RunView | None]:
    """The token is good and its run is under way; reading the run leaves no trace there."""
    member = stored.membership
    with CoordinatorClient(stored.coordinator, member.token, ONCE, tls=stored.tls) as api:
        try:
            run = api.run(member.run)
            check_known(run.requires)
        except Unauthenticated as error:
            return of_error(
                RUN,
                error,
                "It was revoked, or replaced by a newer one. Ask the operator for an invite; then, "
                f"with the same --state: pubswap client enroll --coordinator {stored.coordinator} "
                "--invite CODE",
            ), None
        except UnknownRun as error:
            return of_error(
                RUN, error, "Ask the operator for an invite to a run that exists."
            ), None
        except UnknownSetting as error:
            return of_error(
                RUN, error, "Install the version of pubswap that the operator runs."
            ), None
        except PubSwapError as error:
            advice = "Ask again in a minute; if it stays so, tell the operator this message."
            return of_error(RUN, error, advice), None
    return check_run(run, stored), run


def check_run(run: RunView, stored: StoredMembership) -> Finding:
    """There is something left to train."""
    found = f"valid as {stored.membership.role} of {run.name}, which is {run.state}"
    if run.round:
        found += f" in round {run.round} of {run.settings.rounds}"
    if run.state in _OVER:
        return failure(
            RUN, f"{found}: nothing is left to train", "Ask for an invite to another run."
        )
    if run.paused:
        return warning(
            RUN, f"{found} and paused", "Start anyway: training goes on when the operator resumes."
        )
    return ok(RUN, found)

"""The state folder: may we write there, is it in use, and is there room for checkpoints."""

import os
import shutil
from pathlib import Path

from pubswap_client.doctor.finding import Finding, failure, ok, warning
from pubswap_client.lock import holder
from pubswap_client.membership import StoredMembership
from pubswap_client.operator.tables import size_text
from pubswap_protocol.adapter import AdapterLayout
from pubswap_protocol.messages import Role

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

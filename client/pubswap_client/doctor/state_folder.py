"""The state folder: may we write there, is it in use, and is there room for checkpoints."""

import os
import shutil
from pathlib import Path

from pubswap_client.doctor.findings import Finding, failure, ok, warning
from pubswap_client.state.lock import holder
from pubswap_client.state.membership import StoredMembership
from pubswap_protocol.command_line.amounts import size_text
from pubswap_protocol.messages import Role
from pubswap_protocol.tensors.adapter import AdapterLayout

# The adapter and AdamW's two moments; a new file is complete before the old one goes.
_ADAPTERS_KEPT = 3


def check_folder(state: Path) -> Finding:
    """Check that it exists and can be written in, without writing."""
    if not state.is_dir():
        return failure(
            f"{state} is no folder",
            "Give the one that `pubswap client enroll` made, with --state, or enrol first.",
        )
    if not os.access(state, os.W_OK | os.X_OK):
        return failure(
            f"{state} cannot be written to",
            f"Make it yours: chown -R $(id -un) {state}, and chmod u+rwx {state}.",
        )
    return ok(f"{state} can be written to")


def check_membership(stored: StoredMembership, role: Role) -> Finding:
    """Check that it has this role."""
    member = stored.membership
    text = f"{member.name} in the run {member.run_name} at {stored.coordinator}"
    if member.role is role:
        return ok(text)
    if role is Role.CLIENT:
        advice = (
            "This state folder is for `pubswap evaluate`: check it with --role evaluator. To "
            "train, ask the operator for an invite with the role client, and enrol with another "
            "--state."
        )
    else:
        advice = (
            "This state folder is for `pubswap client start`: check it with --role client. To "
            "evaluate, ask the operator for an invite with the role evaluator, and enrol with "
            "another --state."
        )
    return failure(f"{text}, with the role {member.role}", advice)


def check_daemon(state: Path) -> Finding:
    """Check that no other daemon uses the folder, without taking its lock."""
    other = holder(state)
    if other is None:
        return ok("no other one uses this state folder")
    return warning(
        f"process {other} is training with this state folder",
        f"If you mean to start anew, stop it first: kill {other}. It loses no finished step.",
    )


def check_disk(state: Path, layout: AdapterLayout) -> Finding:
    """Check that there is room for the checkpoint that follows each step, beside the last one."""
    checkpoint = _ADAPTERS_KEPT * layout.file_bytes
    kept = state / "progress" / "checkpoint.safetensors"
    used = kept.stat().st_size if kept.exists() else 0
    free, needed = shutil.disk_usage(state).free, 2 * checkpoint - min(used, checkpoint)
    text = f"{size_text(free)} free; a checkpoint takes {size_text(checkpoint)}"
    if free < needed:
        return failure(
            f"{text}, twice while it is replaced",
            f"Free {size_text(needed - free)} there, or move {state} to a larger disk.",
        )
    return ok(text)

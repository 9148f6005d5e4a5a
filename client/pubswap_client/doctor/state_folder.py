"""Checks of the state folder: permissions, other daemons, disk space, and the policy in it."""

import os
import shutil

from pubswap_client.consent.consent import refused_now, words
from pubswap_client.consent.policy import load_policy, policy_path
from pubswap_client.consent.proposal import proposal_of
from pubswap_client.consent.rules import Code
from pubswap_client.doctor.facts import Facts
from pubswap_client.doctor.findings import Finding, failure, ok, skipped, warning
from pubswap_client.state.lock import holder
from pubswap_client.state.membership import load_membership
from pubswap_protocol.command_line.amounts import size_text
from pubswap_protocol.messages import Role

# The adapter and AdamW's two moments; a new file is complete before the old one is removed.
_ADAPTERS_PER_CHECKPOINT = 3
_PASSING = (Code.BYTES,)
_NONE = skipped("a membership, without --run")


def check_folder(facts: Facts) -> Finding:
    """Check that the folder exists and is writable, without writing."""
    if facts.carded:
        return _NONE
    state = facts.settings.state
    if not state.is_dir():
        return failure(
            f"{state} is not a folder",
            "Give the one that `pubswap client enroll` made, with --state, or enrol first.",
        )
    if not os.access(state, os.W_OK | os.X_OK):
        return failure(
            f"{state} cannot be written to",
            f"Make it yours: chown -R $(id -un) {state}, and chmod u+rwx {state}.",
        )
    return ok(f"{state} can be written to")


def check_membership(facts: Facts) -> Finding:
    if facts.carded:
        return _NONE
    facts.stored = load_membership(facts.settings.state)
    member, role = facts.stored.membership, facts.role
    text = f"{member.name} in the run {member.run_name} at {facts.stored.coordinator}"
    if member.role is role:
        return ok(text)
    evaluates = role is Role.CLIENT  # its folder is the other role's
    return failure(
        f"{text}, with the role {member.role}",
        f"This state folder is for `pubswap {'evaluate' if evaluates else 'client start'}`: check "
        f"it with --role {member.role}. To {'train' if evaluates else 'evaluate'}, ask the "
        f"operator for an invite with the role {role}, and enrol with another --state.",
    )


def check_daemon(facts: Facts) -> Finding:
    """Check that no other daemon uses the folder, without taking its lock."""
    if facts.carded:
        return _NONE
    other = holder(facts.settings.state)
    if other is None:
        return ok("no other daemon uses this state folder")
    return warning(
        f"process {other} is training with this state folder",
        f"To start a new one, stop this one first: kill {other}. It loses no finished step.",
    )


def check_policy(facts: Facts) -> Finding:
    """Check the run against policy.toml; raises InvalidSettings for an invalid policy."""
    if facts.stored is None or facts.run is None:
        return skipped("the run there")
    state, rank = facts.settings.state, facts.settings.rank
    path = policy_path(state)
    if not path.exists():
        return ok(f"{path} does not exist; start writes one that allows what the run asks")
    refused = refused_now(
        state, load_policy(path), proposal_of(facts.run, facts.stored.coordinator, rank)
    )
    if not refused:
        return ok(f"{path} allows what the run asks")
    if all(refusal.code in _PASSING for refusal in refused):
        return warning(words(refused), "Start anyway: it waits, and then continues by itself.")
    return failure(
        words(refused),
        "See `pubswap client policy check`; then change the policy, or `pubswap client approve`.",
    )


def check_disk(facts: Facts) -> Finding:
    """Check that there is room for each step's checkpoint beside the previous one."""
    if facts.stored is None or facts.run is None:
        return skipped("the run there")
    state = facts.settings.state
    checkpoint = _ADAPTERS_PER_CHECKPOINT * facts.run.model.layout.file_bytes
    saved = state / "progress" / "checkpoint.safetensors"
    used = saved.stat().st_size if saved.exists() else 0
    free, needed = shutil.disk_usage(state).free, 2 * checkpoint - min(used, checkpoint)
    text = f"{size_text(free)} free; a checkpoint takes {size_text(checkpoint)}"
    if free < needed:
        return failure(
            f"{text}, twice while it is replaced",
            f"Free {size_text(needed - free)} there, or move {state} to a larger disk.",
        )
    return ok(text)

"""Checks of the state folder: its membership, other daemons, and the policy in it."""

from pubswap_client.consent.consent import refused_now, words
from pubswap_client.consent.policy import policy_path
from pubswap_client.consent.proposal import proposal_of
from pubswap_client.daemon.session import check_role
from pubswap_client.doctor.facts import Facts
from pubswap_client.doctor.findings import Finding, failure, ok, skipped, warning
from pubswap_client.state.lock import holder
from pubswap_client.state.membership import load_membership
from pubswap_protocol.messages import Role


def check_membership(facts: Facts) -> Finding:
    """Check that the folder holds a client's membership, as a start does."""
    stored = load_membership(facts.settings.state)
    check_role(facts.settings.state, stored, Role.CLIENT)
    facts.stored = stored
    member = stored.membership
    return ok(f"{member.name} in the run {member.run_name} at {stored.coordinator}")


def check_daemon(facts: Facts) -> Finding:
    """Check that no other daemon uses the folder, without taking its lock."""
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
    path = policy_path(facts.settings.state)
    if not path.exists():
        return ok(f"{path} does not exist; start writes one that allows what the run asks")
    refused = refused_now(facts.settings.state, proposal_of(facts.run, facts.stored.coordinator))
    if not refused:
        return ok(f"{path} allows what the run asks")
    return failure(
        words(refused),
        "See `pubswap client policy check`; then change the policy, or `pubswap client approve`.",
    )

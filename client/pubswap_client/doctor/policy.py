"""The organisation's own policy: whether it allows what the run asks."""

from pathlib import Path

from pubswap_client.consent.ask import ask_of
from pubswap_client.consent.consent import refused_now, words
from pubswap_client.consent.local_policy import load_policy, policy_path
from pubswap_client.consent.rules import Code
from pubswap_client.doctor.findings import Finding, failure, ok, warning
from pubswap_protocol.messages import RunView

_PASSING = (Code.HOURS, Code.BYTES, Code.ROUNDS)


def check_policy(state: Path, run: RunView, coordinator: str) -> Finding:
    """Check the run against policy.toml; raises InvalidSettings for one that is no policy."""
    path = policy_path(state)
    if not path.exists():
        return ok(f"{path} is not there; start writes one that allows what the run asks")
    refused = refused_now(state, load_policy(path), ask_of(run, coordinator))
    if not refused:
        return ok(f"{path} allows what the run asks")
    if all(refusal.code in _PASSING for refusal in refused):
        return warning(words(refused), "Start anyway: it waits, and goes on by itself.")
    return failure(
        words(refused),
        "See `pubswap client policy check`; then change the policy, or `pubswap client approve`.",
    )

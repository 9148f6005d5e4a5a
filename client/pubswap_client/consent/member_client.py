"""The client for a member's commands: the ledger records its requests, the policy limits them."""

from collections.abc import Iterable
from pathlib import Path

from pubswap_client.consent.consent import Consent
from pubswap_client.consent.ledger import Ledger
from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.coordinator.retry import Backoff
from pubswap_client.state.membership import StoredMembership


def member_client(state: Path, stored: StoredMembership, backoff: Backoff) -> CoordinatorClient:
    """A client for a membership.

    Before anything is sent, a request raises RefusedByPolicy if the policy does not allow the
    coordinator (any more), InvalidSettings if the policy is invalid, and NotSaved or LedgerDamaged
    if the ledger cannot record it.
    """
    consent = Consent(state, stored.coordinator, Ledger(state))

    def on_send(method: str, target: str, media_type: str, pieces: Iterable[bytes]) -> None:
        consent.check_coordinator()
        consent.record(method, target, media_type, pieces)

    token = stored.membership.token
    return CoordinatorClient(stored.coordinator, token, backoff, tls=stored.tls, on_send=on_send)

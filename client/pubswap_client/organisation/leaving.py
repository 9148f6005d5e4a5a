"""A member's leaving: nobody waits for it until its daemon starts again."""

from pathlib import Path

from pubswap_client.consent.consent import Consent
from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.coordinator.retry import Backoff
from pubswap_client.ledger.ledger import Ledger
from pubswap_client.state.lock import locked
from pubswap_client.state.membership import load_membership
from pubswap_protocol.messages import Away, Membership

LEFT = Away(code="left", detail="It left with `pubswap client leave`.")


def leave(state: Path) -> Membership:
    """Tell the coordinator; raises StateInUse while a daemon runs."""
    stored = load_membership(state)
    member, backoff = stored.membership, Backoff(tries=3)
    with locked(state):
        consent = Consent(state, stored.coordinator, Ledger(state))
        consent.check_coordinator()
        with CoordinatorClient(
            *(stored.coordinator, member.token, backoff), tls=stored.tls, on_send=consent.record
        ) as api:
            api.away(member.run, LEFT)
    return member

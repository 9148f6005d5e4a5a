"""A member's leaving: nobody waits for it until its daemon starts again."""

from pathlib import Path

from pubswap_client.consent.member_client import member_client
from pubswap_client.coordinator.retry import Backoff
from pubswap_client.state.lock import locked
from pubswap_client.state.membership import load_membership
from pubswap_protocol.messages import Away, Membership

LEFT = Away(code="left", detail="It left with `pubswap client leave`.")


def leave(state: Path) -> Membership:
    """Tell the coordinator; raises StateInUse while a daemon runs."""
    stored = load_membership(state)
    member = stored.membership
    with locked(state), member_client(state, stored, Backoff(tries=3)) as api:
        api.away(member.run, LEFT)
    return member

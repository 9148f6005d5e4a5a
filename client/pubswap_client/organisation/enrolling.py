"""Exchange an invite for a token that neither a full disk nor a crash can lose."""

import base64
import hmac
import secrets
from pathlib import Path

from pubswap_client.consent.consent import Consent
from pubswap_client.consent.ledger import Ledger
from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.coordinator.retry import ONCE
from pubswap_client.coordinator.tls import TlsFiles
from pubswap_client.state.lock import locked
from pubswap_client.state.membership import (
    StoredMembership,
    load_membership,
    membership_path,
    save_membership,
)
from pubswap_protocol.errors import InvalidSettings, NotSaved, StateInUse
from pubswap_protocol.files import write_whole

_SECRET = "enrolment-key"  # noqa: S105 - a file's name


def enroll(coordinator: str, invite: str, state: Path, tls: TlsFiles) -> StoredMembership:
    """Use the invite and keep the token in the state folder.

    If anything goes wrong after the invite is spent, repeating this with the same folder gets the
    same token. Before that, raises StateInUse if the folder holds a membership, and RefusedByPolicy
    if its policy does not allow the coordinator.
    """
    invite = invite.strip()  # a pasted one may have spaces around it
    if not (invite.isascii() and invite.isprintable()):
        raise InvalidSettings("The invite has characters that no invite has; copy it again.")
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(state):
        _require_vacant(state)
        consent = Consent(state, coordinator, Ledger(state))
        consent.check_coordinator()
        # The key is always the same in this folder, and known nowhere else.
        digest = hmac.digest(_saved_secret(state), invite.encode(), "sha256")
        key = base64.urlsafe_b64encode(digest).decode()
        with CoordinatorClient(coordinator, backoff=ONCE, tls=tls, on_send=consent.record) as api:
            api.check_version()
            membership = api.enroll(invite, key)
        stored = StoredMembership(coordinator=coordinator, membership=membership, tls=tls)
        try:
            save_membership(state, stored)
        except NotSaved as error:
            raise NotSaved(
                f"{error.detail} The invite is not lost: repeat the command, and it gets the same "
                "token."
            ) from None
        (state / _SECRET).unlink(missing_ok=True)
    return stored


def _require_vacant(state: Path) -> None:
    path = membership_path(state)
    if not path.exists():
        return
    held = load_membership(state).membership
    raise StateInUse(
        f"{state} holds the membership of {held.name} in run {held.run_name}, and the only copy "
        "of its token. Enroll into a folder of its own with --state. If the operator has reissued "
        f"{held.name}, move {path} away first."
    )


def _saved_secret(state: Path) -> bytes:
    """The folder's own random secret, saved before any invite is spent with it."""
    path = state / _SECRET
    if not path.exists():
        write_whole(path, secrets.token_bytes(32))
    return path.read_bytes()

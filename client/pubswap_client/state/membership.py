"""The stored membership: the coordinator's address and the token, readable only by its owner."""

from pathlib import Path
from shlex import quote

from pydantic import BaseModel, ValidationError

from pubswap_client.coordinator.tls import TlsFiles
from pubswap_protocol.errors import InvalidSettings, first_fault
from pubswap_protocol.files import write_whole
from pubswap_protocol.messages import Membership


class StoredMembership(BaseModel, extra="forbid", frozen=True):
    """`membership.json` in the state folder."""

    coordinator: str
    membership: Membership
    tls: TlsFiles = TlsFiles()


def membership_path(state: Path) -> Path:
    return state / "membership.json"


def save_membership(state: Path, stored: StoredMembership) -> Path:
    """Write the membership atomically, mode 0600."""
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = membership_path(state)
    write_whole(path, f"{stored.model_dump_json(indent=2)}\n".encode())
    return path


def load_membership(state: Path) -> StoredMembership:
    """The membership. Raises InvalidSettings, with what to do, if it is missing or damaged."""
    path = membership_path(state)
    try:
        return StoredMembership.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise InvalidSettings(
            f"{state} holds no membership. Ask the operator for an invite, then: "
            f"pubswap client enroll --coordinator URL --invite CODE --state {quote(str(state))}"
        ) from None
    except ValidationError as error:
        raise InvalidSettings(
            f"{path} is damaged. Move it away, ask the operator for `pubswap member reissue`, and "
            f"enroll again. ({first_fault(error)})"
        ) from None

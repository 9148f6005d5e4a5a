"""`approval.json` in the state folder: what a person has approved or denied, and when."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import AwareDatetime, BaseModel, Field, ValidationError

from pubswap_client.consent.proposal import Proposal
from pubswap_protocol.errors import InvalidSettings, first_fault
from pubswap_protocol.files import write_whole


class Approval(BaseModel, frozen=True):
    """A decision on one run."""

    run: str = Field(description="The run's id.")
    approved: bool
    coordinator: str | None = Field(default=None, description="Its address then.")
    terms: str | None = Field(
        default=None, description="The approved terms, byte for byte. None for a denial."
    )
    round: int | None = Field(
        default=None, description="An earlier version's; from 1 on, maybe the only one approved."
    )
    at: AwareDatetime


def approval_path(state: Path) -> Path:
    """The path of `approval.json` in a state folder."""
    return state / "approval.json"


def read_approval(state: Path, run: str) -> Approval | None:
    """The decision on a run, or None. Raises InvalidSettings if the file cannot be read."""
    path = approval_path(state)
    try:
        approval = Approval.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:  # for example after `sudo pubswap client deny`
        raise InvalidSettings(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        raise InvalidSettings(
            f"{path} is damaged ({first_fault(error)}); decide again with `pubswap client approve` "
            "or `deny`."
        ) from None
    return approval if approval.run == run else None


def save_approval(state: Path, proposal: Proposal) -> None:
    """Save the approval of a run's terms; raises NotSaved."""
    asked = {"coordinator": proposal.coordinator, "terms": proposal.terms}
    _save(state, run=proposal.view.id, approved=True, **asked)


def save_denial(state: Path, run: str) -> None:
    """Save the denial of a run; raises NotSaved."""
    _save(state, run=run, approved=False)


def _save(state: Path, **decision: Any) -> None:
    approval = Approval(**decision, at=datetime.now(UTC))
    write_whole(approval_path(state), f"{approval.model_dump_json(indent=2)}\n".encode())

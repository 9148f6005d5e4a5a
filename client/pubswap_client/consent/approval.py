"""`approval.json` in the state folder: what a person has approved or denied, and when."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from pydantic import AwareDatetime, BaseModel, Field, ValidationError

from pubswap_protocol.errors import InvalidSettings, first_fault
from pubswap_protocol.files import write_whole


class Approval(BaseModel, extra="forbid", frozen=True):
    """A decision on one run."""

    run: str = Field(description="The run's id.")
    approved: bool
    asked: dict[str, str] = Field(default={}, description="What the person was shown.")
    round: int | None = Field(default=None, description="The round under way then.")
    at: AwareDatetime

    def changed(self, asked: Mapping[str, str]) -> list[str]:
        """What has changed; no address, because the reason is sent to the coordinator."""
        return [
            what if what == "coordinator" else f"{what} {self.asked.get(what, 'unsaid')} -> {value}"
            for what, value in asked.items()
            if self.asked.get(what) != value
        ]


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


def decide(
    state: Path, run: str, approved: bool, asked: Mapping[str, str] = {}, round_: int | None = None
) -> None:
    """Save a decision; raises NotSaved."""
    decision = Approval(
        run=run, approved=approved, asked=dict(asked), round=round_, at=datetime.now(UTC)
    )
    write_whole(approval_path(state), f"{decision.model_dump_json(indent=2)}\n".encode())

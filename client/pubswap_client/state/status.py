"""`status.json` in the state folder: what the daemon does now, for whoever looks from beside it."""

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from pydantic import AwareDatetime, BaseModel, Field, ValidationError

from pubswap_protocol.messages import RunView

STATUS = "status.json"


class DaemonStatus(BaseModel, frozen=True):
    """A daemon at one moment; figures are of the last round of which it has made a step."""

    run: str = Field(description="The run's id.")
    at: AwareDatetime = Field(description="When this was written.")
    doing: str = Field(default="starting", description="What it does or waits for, in words.")
    round: int = 0
    step: int = Field(default=0, description="The last step that was made.")
    steps: int
    rewards: list[float | None] = Field(default=[], description="Of each step so far.")
    step_seconds: float | None = Field(default=None, description="Of a step, with waiting: mean.")
    tokens_per_second: float | None = Field(default=None, description="Of the last step.")
    sent_bytes: int = Field(default=0, description="In requests' bodies, since enrolment.")
    received_bytes: int = Field(default=0, description="In answers' bodies, since enrolment.")

    @property
    def left_seconds(self) -> float | None:
        """An estimate of the time to the end of this organisation's part of the round."""
        return None if self.step_seconds is None else self.step_seconds * (self.steps - self.step)


def read_status(state: Path, run: str) -> DaemonStatus | None:
    """The last one written, if it is of the run and a power cut has left it whole."""
    with suppress(FileNotFoundError, ValidationError):
        status = DaemonStatus.model_validate_json((state / STATUS).read_bytes())
        return status if status.run == run else None
    return None


def status_so_far(state: Path, run: RunView) -> DaemonStatus:
    """What a daemon of this run has noted last, or the status of one that has done nothing."""
    steps, last = run.settings.local_steps, read_status(state, run.id)
    if last is None:
        return DaemonStatus(run=run.id, steps=steps, at=run.created_at)
    return last.model_copy(update={"steps": steps})


def note_doing(state: Path, run: RunView, doing: str) -> None:
    """Note what a daemon does that takes no part in the run yet."""
    changes = {"doing": doing, "at": datetime.now(UTC)}
    write_status(state, status_so_far(state, run).model_copy(update=changes))


def write_status(state: Path, status: DaemonStatus) -> None:
    """Replace it. It is not worth waiting for the disk, or failing for it."""
    temporary = (state / STATUS).with_suffix(".tmp")
    with suppress(OSError):
        temporary.touch(mode=0o600)
        temporary.write_text(status.model_dump_json(), encoding="utf-8")
        temporary.replace(state / STATUS)

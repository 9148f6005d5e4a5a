"""`status.json` in the state folder: the daemon's current activity, for other commands to show."""

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from pydantic import AwareDatetime, BaseModel, Field, ValidationError

from pubswap_protocol.messages import RunView

STATUS = "status.json"


class DaemonStatus(BaseModel, frozen=True):
    """A daemon's status. Its figures are of the last round in which it has made a step."""

    run: str = Field(description="The run's id.")
    at: AwareDatetime = Field(description="When this was written.")
    doing: str = Field(default="starting", description="Current activity or wait, in words.")
    round: int = 0
    step: int = Field(default=0, description="The last step completed.")
    steps: int
    rewards: list[float | None] = Field(
        default=[], description="On its own problems, by step so far; None for a public step."
    )
    step_seconds: float | None = Field(default=None, description="Mean time of a step, with waits.")
    tokens_per_second: float | None = Field(default=None, description="Of the last step.")
    sent_bytes: int = Field(default=0, description="In request bodies, since enrolment.")
    received_bytes: int = Field(default=0, description="In response bodies, since enrolment.")

    @property
    def left_seconds(self) -> float | None:
        """Estimated time until this organisation finishes its part of the round."""
        return None if self.step_seconds is None else self.step_seconds * (self.steps - self.step)


def read_status(state: Path, run: str) -> DaemonStatus | None:
    """The last status written, or None if it is another run's or a power cut damaged it."""
    with suppress(FileNotFoundError, ValidationError):
        status = DaemonStatus.model_validate_json((state / STATUS).read_bytes())
        return status if status.run == run else None
    return None


def status_so_far(state: Path, run: RunView) -> DaemonStatus:
    """The last status of this run's daemon, or a blank one if it has not written any."""
    steps, last = run.settings.local_steps, read_status(state, run.id)
    if last is None:
        return DaemonStatus(run=run.id, steps=steps, at=run.created_at)
    return last.model_copy(update={"steps": steps})


def note_doing(state: Path, run: RunView, doing: str) -> None:
    """Record the activity of a daemon that is not yet taking part in the run."""
    changes = {"doing": doing, "at": datetime.now(UTC)}
    write_status(state, status_so_far(state, run).model_copy(update=changes))


def write_status(state: Path, status: DaemonStatus) -> None:
    """Replace the status, without fsync and ignoring write errors: it is not worth failing for."""
    temporary = (state / STATUS).with_suffix(".tmp")
    with suppress(OSError):
        temporary.touch(mode=0o600)
        temporary.write_text(status.model_dump_json(), encoding="utf-8")
        temporary.replace(state / STATUS)

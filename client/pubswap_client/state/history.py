"""`history.jsonl` in the state folder: what this organisation's training did, one line a round."""

import os
from collections.abc import Sequence
from pathlib import Path

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from pubswap_client.state.files import append_durably
from pubswap_protocol.errors import NotSaved
from pubswap_protocol.messages import Digest


class RoundFigures(BaseModel):
    """A round whose local steps were all made; means are over the steps."""

    model_config = ConfigDict(frozen=True)

    run: str = Field(description="The run's id.")
    round: int
    start: Digest = Field(description="The global adapter that it began from.")
    at: AwareDatetime = Field(description="When its last step was made.")
    steps: int
    rewards: list[float | None] = Field(description="Of each step, in the order of the updates.")
    reward: float | None
    loss: float | None
    kl: float | None
    clip_share: float | None
    zero_variance_share: float | None
    response_tokens: float | None
    tokens: int
    seconds: float = Field(description="Of the steps, without waiting.")
    waited: float = Field(description="Seconds for the other organisations.")


def history_path(state: Path) -> Path:
    """Where a state folder keeps its history."""
    return state / "history.jsonl"


def append(path: Path, figures: RoundFigures) -> None:
    """Add a round, unless it is the last one there; a line that a kill has torn is cut off first.

    Raises NotSaved.
    """
    line = f"{figures.model_dump_json()}\n".encode()
    try:
        data = path.read_bytes() if path.exists() else b""
        end = data.rfind(b"\n") + 1
        if end < len(data):
            os.truncate(path, end)
        last = _parsed(data[:end].splitlines()[-1:])
        if [(one.run, one.round, one.start) for one in last] != [
            (figures.run, figures.round, figures.start)
        ]:
            append_durably(path, line)
    except OSError as error:
        raise NotSaved(
            f"{path} does not take a round's {len(line)} bytes: {error.strerror}. What was saved "
            "before is untouched; make room and start again."
        ) from None


def read(path: Path, run: str) -> list[RoundFigures]:
    """The rounds of a run, in the order in which they were trained; no line that is none."""
    data = path.read_bytes() if path.exists() else b""
    whole = data[: data.rfind(b"\n") + 1].splitlines()
    return [one for one in _parsed(whole) if one.run == run]


def _parsed(lines: Sequence[bytes]) -> list[RoundFigures]:
    found = []
    for line in lines:
        try:
            found.append(RoundFigures.model_validate_json(line))
        except ValidationError:
            continue
    return found

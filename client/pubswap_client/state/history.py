"""An organisation's training history: two JSON Lines files in the state folder, one line a round.

history.jsonl    its own steps
held-out.jsonl   pass@1 of the global adapters on its held-out problems
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import AwareDatetime, BaseModel, Field, ValidationError

from pubswap_protocol.files import write_whole
from pubswap_protocol.messages import Digest


class RoundFigures(BaseModel, frozen=True):
    """Figures of a round with all local steps done. Means are over the steps."""

    run: str = Field(description="The run's id.")
    round: int
    start: Digest = Field(description="Global adapter at the round's start.")
    rollbacks: int = Field(default=0, description="The run's rollbacks when the round began.")
    problems: Digest | None = Field(
        default=None, description="Of the problems trained on; unknown to earlier versions."
    )
    prompts_per_step: int | None = Field(
        default=None, description="Of its own steps; unknown to earlier versions."
    )
    at: AwareDatetime = Field(description="Time of its last step.")
    steps: int
    rewards: list[float | None] = Field(
        description="On its own problems, in the order of the updates; None for a public step."
    )
    reward: float | None = Field(description="Mean over the private steps.")
    loss: float | None
    kl: float | None
    clip_share: float | None
    zero_variance_share: float | None
    response_tokens: float | None
    tokens: int
    seconds: float = Field(description="Time of the steps, without waits.")
    waited: float = Field(description="Seconds waited for other organisations.")
    late: bool = Field(default=False, description="Its update did not come in time to count.")

    @property
    def key(self) -> tuple[str, int, Digest, int]:
        return self.run, self.round, self.start, self.rollbacks


class HeldOutScore(BaseModel, frozen=True):
    """pass@1 of the global adapter after a round, from one response to each held-out problem."""

    run: str = Field(description="The run's id.")
    round: int = Field(description="0 is the base model.")
    adapter: Digest
    at: AwareDatetime
    pass_at_1: float
    problems: int
    digest: Digest = Field(description="Of problems and verifier, as both may change.")
    seconds: float

    @property
    def key(self) -> tuple[str, int, Digest, Digest]:
        return self.run, self.round, self.adapter, self.digest


Line = TypeVar("Line", RoundFigures, HeldOutScore)


HISTORY, HELD_OUT = "history.jsonl", "held-out.jsonl"


def append(path: Path, figures: Line) -> None:
    """Append a round, or replace the last line if it is the same round's. Raises NotSaved."""
    lines: list[bytes] = _lines(path)
    if [entry.key for entry in _parsed(lines[-1:], type(figures))] == [figures.key]:
        del lines[-1]
    write_whole(path, b"\n".join([*lines, figures.model_dump_json().encode(), b""]))


def read(path: Path, run: str, kind: type[Line]) -> list[Line]:
    """A run's lines, in the order written."""
    return [entry for entry in _parsed(_lines(path), kind) if entry.run == run]


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines() if path.exists() else []


def _parsed(lines: Sequence[bytes], kind: type[Line]) -> list[Line]:
    parsed: list[Line] = []
    for line in lines:
        try:
            parsed.append(kind.model_validate_json(line))
        except ValidationError:
            continue
    return parsed

"""The progress folder: a client's last checkpoint, and the batch of the current public step.

    checkpoint.safetensors          saved after each local step
    exchange-own.safetensors        our responses, saved before they are sent
    exchange-received.safetensors   the groups to train on, saved before training

All are sealed files. A file that is damaged or belongs to another run is renamed to `*.damaged`,
and its work is done again.

A checkpoint's random state is only the step's number: every draw is a function of (seed, client,
round, step), and no generator is saved. The problems of a batch also depend on the number of
prompts taken by resampling, so that is saved too.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from pubswap_client.state.sealed import BrokenSeal, Facts, Tensors, seal, unseal
from pubswap_client.training.metrics import StepMetrics
from pubswap_client.training.trainer import Snapshot
from pubswap_protocol.digests import digest_of
from pubswap_protocol.files import sweep, write_whole
from pubswap_protocol.messages import Digest, RunView

log = logging.getLogger(__name__)

T = TypeVar("T")

_CHECKPOINT = "checkpoint"
_SAMPLED, _RECEIVED = "exchange-own", "exchange-received"


@dataclass(frozen=True, slots=True)
class JournalOwner:
    """A client of a run with these terms. No other owner's files are used."""

    run: str
    client: str
    terms: Digest

    @classmethod
    def of(cls, run: RunView, client: str) -> Self:
        # As they were approved, which a later version reads with more settings. Simulations, whose
        # members approve nothing, have none.
        read = run.settings.model_dump_json() + run.model.model_dump_json()
        return cls(run.id, client, digest_of((run.terms or read).encode()))


class RoundKey(NamedTuple):
    """A round of a run. After a rollback it is a different one, even from the same adapter."""

    round: int  # 1, 2, ...
    start: Digest  # of the global adapter at the round's start
    rollbacks: int = 0  # of the run, when the round began


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A round after some of its local steps: the adapter, AdamW's state, and the metrics."""

    key: RoundKey
    steps: tuple[StepMetrics, ...]  # of the local steps finished so far: 1, 2, ...
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class PublicStepKey:
    """The public step that a saved batch belongs to."""

    key: RoundKey
    public_step: int
    prompts: list[int]  # positions in the public set

    def facts(self) -> Facts:
        return {**self.key._asdict(), "public_step": self.public_step, "prompts": self.prompts}


class Journal:
    """One client's progress folder. Only one daemon at a time may use it (see `lock.py`)."""

    def __init__(self, folder: Path, owner: JournalOwner) -> None:
        """Create the folder if needed, and remove interrupted writes from it."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        sweep(folder)
        self._folder = folder
        self._owner = owner

    def checkpoint(self) -> Checkpoint | None:
        """The last checkpoint saved, or None if there is none or it is damaged."""
        return self._load(_CHECKPOINT, _checkpoint)

    def save(self, checkpoint: Checkpoint, under_way: bool = False) -> None:
        """Replace the checkpoint. Raises NotSaved.

        Delete the batch of its step too, unless a public step is still `under_way`.
        """
        snapshot = checkpoint.snapshot
        facts: dict[str, Any] = {
            **checkpoint.key._asdict(),
            "steps": [asdict(metrics) for metrics in checkpoint.steps],
            "resampled": snapshot.resampled,
            "beginning": snapshot.beginning,
        }
        parts: dict[str, Tensors] = {"adapter": snapshot.adapter, "optimizer": snapshot.optimizer}
        tensors = {f"{part}/{name}": array for part in parts for name, array in parts[part].items()}
        self._save(_CHECKPOINT, facts, tensors)
        for name in () if under_way else (_RECEIVED, _SAMPLED):
            self._path(name).unlink(missing_ok=True)

    def sampled(self, key: PublicStepKey) -> bytes | None:
        """Our saved responses of a public step, or None."""
        return self._batch(_SAMPLED, key)

    def save_sampled(self, key: PublicStepKey, body: bytes) -> None:
        """Save our responses exactly as sent, or about to be sent. Raises NotSaved."""
        self._save(_SAMPLED, {"step": key.facts()}, _body(body))

    def received(self, key: PublicStepKey) -> bytes | None:
        """The saved groups to train on in a public step, or None."""
        return self._batch(_RECEIVED, key)

    def save_received(self, key: PublicStepKey, body: bytes) -> None:
        self._save(_RECEIVED, {"step": key.facts()}, _body(body))

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.safetensors"

    def _save(self, name: str, facts: Facts, tensors: Tensors) -> None:
        write_whole(self._path(name), *seal({"owner": asdict(self._owner), **facts}, tensors))

    def _batch(self, name: str, key: PublicStepKey) -> bytes | None:
        batch = self._load(name, lambda facts, tensors: (facts["step"], tensors["body"].tobytes()))
        # The file may be an earlier step's, if a crash prevented its removal.
        return batch[1] if batch is not None and batch[0] == key.facts() else None

    def _load(self, name: str, parse: Callable[[Facts, dict[str, NDArray[Any]]], T]) -> T | None:
        path = self._path(name)
        try:
            facts, tensors = unseal(path.read_bytes())
            if facts.get("owner") != asdict(self._owner):
                raise BrokenSeal(
                    f"it belongs to {facts.get('owner')}, not to {asdict(self._owner)}"
                )
            return parse(facts, tensors)
        except FileNotFoundError:
            return None
        except BrokenSeal as error:
            reason = str(error)
        except (LookupError, TypeError) as error:
            reason = f"another version of PubSwap wrote it: {error}"
        aside = path.with_name(path.name + ".damaged")
        path.replace(aside)
        log.warning("Not using %s: %s. It was renamed to %s.", path, reason, aside.name)
        return None


def _body(body: bytes) -> dict[str, NDArray[Any]]:
    return {"body": np.frombuffer(body, np.uint8)}


def _checkpoint(facts: Facts, tensors: Mapping[str, NDArray[Any]]) -> Checkpoint:
    parts: dict[str, dict[str, NDArray[Any]]] = {"adapter": {}, "optimizer": {}}
    for path, array in tensors.items():
        part, _, name = path.partition("/")
        parts[part][name] = array
    snapshot = Snapshot(
        parts["adapter"],
        parts["optimizer"],
        facts["resampled"],
        facts["beginning"],
    )
    steps = tuple(StepMetrics(**metrics) for metrics in facts["steps"])
    return Checkpoint(_key(facts), steps, snapshot)


def _key(facts: Facts) -> RoundKey:
    return RoundKey(facts["round"], facts["start"], facts["rollbacks"])

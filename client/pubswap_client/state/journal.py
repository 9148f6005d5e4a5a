"""The progress folder: a client's last checkpoint, and the batch of the public step under way.

    checkpoint.safetensors          after each local step
    exchange-own.safetensors        our responses, kept before they are sent
    exchange-received.safetensors   the groups to train on, kept before they are trained on
    update.safetensors              a reduced update before it is sent, and what it leaves out

All are sealed files. One that is damaged, or another run's, is set aside as `*.damaged`, and the
work it stood for is done again.
"""

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pubswap_client.state.checkpoint import (
    FORMAT,
    Checkpoint,
    Owner,
    check_owner,
    decode_checkpoint,
    encode_checkpoint,
)
from pubswap_client.state.files import sweep, write_whole
from pubswap_client.state.sealed import BrokenSeal, seal, unseal
from pubswap_protocol.messages import Digest
from pubswap_protocol.tensors.adapter import Adapter

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PublicStep:
    """Which public step a kept batch belongs to."""

    round: int
    start: Digest  # of the global adapter that the round began from
    swap: int


@dataclass(frozen=True, slots=True)
class OwnResponses:
    """What we sent, or were about to send, to an exchange: the very bytes."""

    body: bytes
    seconds: float  # that sampling them took


@dataclass(frozen=True, slots=True)
class ReducedUpdate:
    """A round's update in reduced precision: the very bytes, and the residual for the next one."""

    round: int
    start: Digest  # of the global adapter that the round began from
    body: bytes
    residual: Adapter


class ProgressStore:
    """One client's progress folder. Only one daemon at a time may use it (see `lock.py`)."""

    def __init__(self, folder: Path, owner: Owner) -> None:
        """Make the folder if need be, and clear it of writes that were cut off."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        sweep(folder)
        self._owner = owner
        self._checkpoint = folder / "checkpoint.safetensors"
        self._own = folder / "exchange-own.safetensors"
        self._received = folder / "exchange-received.safetensors"
        self._update = folder / "update.safetensors"

    def checkpoint(self) -> Checkpoint | None:
        """The last one saved; None if there is none, or none that can be believed."""
        data = _read(self._checkpoint)
        try:
            return None if data is None else decode_checkpoint(self._owner, data)
        except BrokenSeal as error:
            _set_aside(self._checkpoint, error)
            return None

    def save(self, checkpoint: Checkpoint, under_way: bool = False) -> None:
        """Replace the checkpoint. Raises NotSaved.

        The batch of its step is then of no use, unless a public step is still `under_way`.
        """
        write_whole(self._checkpoint, encode_checkpoint(self._owner, checkpoint))
        for path in () if under_way else (self._received, self._own):
            path.unlink(missing_ok=True)

    def own(self, step: PublicStep) -> OwnResponses | None:
        """Our responses of a public step, if they were kept."""
        found = self._batch(self._own, step)
        return None if found is None else OwnResponses(found[1], float(found[0]["seconds"]))

    def save_own(self, step: PublicStep, own: OwnResponses) -> None:
        """Keep our responses of a public step. Raises NotSaved."""
        self._save_batch(self._own, step, own.body, {"seconds": own.seconds})

    def received(self, step: PublicStep) -> bytes | None:
        """The groups to train on in a public step, if they were kept."""
        found = self._batch(self._received, step)
        return None if found is None else found[1]

    def save_received(self, step: PublicStep, body: bytes) -> None:
        """Keep the groups to train on in a public step. Raises NotSaved."""
        self._save_batch(self._received, step, body, {})

    def update(self) -> ReducedUpdate | None:
        """The last one saved; None if there is none, or none that can be believed."""
        found = self._believed(self._update)
        if found is None:
            return None
        facts, tensors = found
        body = tensors.pop("body").tobytes()
        return ReducedUpdate(facts["round"], facts["start"], body, tensors)

    def save_update(self, update: ReducedUpdate) -> None:
        """Replace the update: its residual holds what the one before left out. Raises NotSaved."""
        body = np.frombuffer(update.body, np.uint8)
        more = {"round": update.round, "start": update.start}
        write_whole(self._update, seal(self._facts(more), {**update.residual, "body": body}))

    def forget_update(self) -> None:
        """The last update was not used: nothing is owed for what it left out."""
        self._update.unlink(missing_ok=True)

    def _facts(self, more: Mapping[str, Any]) -> dict[str, Any]:
        return {"format": FORMAT, "owner": asdict(self._owner), **more}

    def _save_batch(
        self, path: Path, step: PublicStep, body: bytes, more: Mapping[str, Any]
    ) -> None:
        facts = self._facts({"step": asdict(step), **more})
        write_whole(path, seal(facts, {"body": np.frombuffer(body, np.uint8)}))

    def _batch(self, path: Path, step: PublicStep) -> tuple[dict[str, Any], bytes] | None:
        found = self._believed(path)
        if found is None or found[0]["step"] != asdict(step):
            return None  # or an earlier step's, which a crash kept from being removed
        facts, tensors = found
        return facts, tensors["body"].tobytes()

    def _believed(self, path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]] | None:
        data = _read(path)
        if data is None:
            return None
        try:
            facts, tensors = unseal(data)
            check_owner(self._owner, facts)
        except BrokenSeal as error:
            _set_aside(path, error)
            return None
        return facts, tensors


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _set_aside(path: Path, reason: BrokenSeal) -> None:
    aside = path.with_name(path.name + ".damaged")
    path.replace(aside)
    log.warning("%s is not used, %s; it is now %s.", path, reason, aside.name)

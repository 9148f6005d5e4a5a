"""One process of `make gpu`: its device, scale and time limit, and its loaded policy."""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.gpu.cards import Card, card_of
from benchmarks.gpu.models import saved_model, stops
from benchmarks.timing import Clock
from benchmarks.workload import Lengths, Workload, run_settings, start_adapter
from pubswap_client.policy.policy import Policy
from pubswap_client.policy.self_check import check_packed_path
from pubswap_protocol.model import ModelCard, model_card
from pubswap_protocol.settings import RunSettings


@dataclass(frozen=True)
class Scale:
    """Lengths in tokens, and numbers of rows."""

    lengths: Lengths  # of an update's frozen responses
    cut: int  # of sampled responses
    mean: float
    evaluated: int  # rows of an evaluator
    evaluated_mean: float
    steps: int  # of learning, in a round
    rounds: int
    tested: int  # problems


REAL = Scale(
    lengths=Lengths(prompts=(256, 1024), median=1115, sigma=0.6, cut=2048),
    cut=2048,
    mean=1200,
    evaluated=512,
    evaluated_mean=600,
    steps=8,
    rounds=6,
    tested=160,
)
TINY = Scale(
    lengths=Lengths(prompts=(4, 8), median=6, sigma=0.6, cut=12),
    cut=12,
    mean=6,
    evaluated=24,
    evaluated_mean=4,
    steps=1,
    rounds=1,
    tested=4,
)


@dataclass
class Context:
    """The context of all measurements; `until` is their deadline in time.monotonic()."""

    device: torch.device
    tiny: bool
    models: Path
    scratch: Path
    until: float
    _loaded: tuple[str, Policy] | None = field(default=None, init=False)

    @property
    def scale(self) -> Scale:
        return TINY if self.tiny else REAL

    @property
    def seconds_left(self) -> float:
        return self.until - time.monotonic()

    @property
    def card(self) -> Card | None:
        """The GPU's figures by its maker; None for a CPU, or for a GPU that is not listed."""
        if self.device.type != "cuda":
            return None
        return card_of(torch.cuda.get_device_name(self.device))

    @property
    def settings(self) -> RunSettings:
        """The paper's settings, for this scale's lengths."""
        return run_settings(self.scale.lengths)

    def folder(self, model: str, **changes: Any) -> Path:
        """The folder of a shape's model on disk."""
        return saved_model(model, self.models, self.device, self.tiny, **changes)

    def policy(self, model: str, mean: float | None = None) -> Policy:
        """A shape's policy at the start adapter, with the path that its self-check chose.

        Responses end by chance, at `mean` tokens on average. The last policy stays loaded, and is
        freed before another is loaded.
        """
        if self._loaded is None or self._loaded[0] != model:
            self.free()
            folder = self.folder(model)
            policy = Policy.load(folder, _card(folder), self.settings, self.device)
            check_packed_path(policy)
            self._loaded = (model, policy)
        policy = self._loaded[1]
        ends = (1,) if mean is None else stops(policy.card.vocabulary, mean, self.scale.cut)
        policy.card = policy.card.model_copy(update={"eos_token_ids": ends})
        policy.load_adapter(start_adapter(policy.card.layout))
        # Texts consist of these words; versions of transformers read our tokenizer differently.
        policy.encode = _ids  # type: ignore[method-assign]
        return policy

    def workload(self, policy: Policy) -> Workload:
        """An update's frozen responses, always the same."""
        return Workload.make(self.scale.lengths, policy.card.vocabulary)

    def free(self) -> None:
        """Free the loaded policy."""
        self._loaded = None
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def timed(self, work: Callable[[], object], repeats: int = 3) -> dict[str, Any]:
        """Time `work` in seconds: a first call, and the median of up to `repeats` more.

        The first call compiles and fills caches; it counts only if no time is left for a second.
        """
        clock = Clock(self.device)

        def once() -> float:
            started = clock()
            work()
            return clock() - started

        first = once()
        times: list[float] = []
        while len(times) < (1 if self.tiny else repeats) and self.seconds_left > 1.2 * (
            times[-1] if times else first
        ):
            times.append(once())
        return {
            "seconds": median(times) if times else first,
            "first_seconds": first,
            "repeats": times,
        }


class NotRun(Exception):
    """A measurement cannot be made here; the text says why."""


def _ids(prompt: str) -> list[int]:
    """The token ids of a text made by `workload.text`."""
    return [int(word[1:]) for word in prompt.split()]


def _card(folder: Path) -> ModelCard:
    """The model's card, cached beside it because hashing gigabytes of weights takes seconds."""
    cached = folder.parent / f"{folder.name}.card.json"
    if not cached.exists():
        card = model_card(folder, RunSettings().lora, folder.name, None)
        cached.write_text(card.model_dump_json(), encoding="utf-8")
    return ModelCard.model_validate_json(cached.read_bytes())


def reset_peak(device: torch.device) -> None:
    """Start measuring `peak_bytes`."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int | None:
    """torch's peak of reserved GPU memory, unused parts of blocks included; None on a CPU."""
    return int(torch.cuda.max_memory_reserved(device)) if device.type == "cuda" else None

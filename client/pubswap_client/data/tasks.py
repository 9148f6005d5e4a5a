"""reasoning-gym's generators as streams of problems, which are functions of a seed."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.verifiers.reasoning import library

Record = dict[str, Any]
Half = Literal["pretraining", "demo"]

# reasoning-gym gives item i of seed s the generator Random(s + i): nearby seeds share items.
SEED_STRIDE = 1_000_000
_MAX_MISSES = 500


def half_of(prompt: str) -> Half:
    """The half of all prompts that this one belongs to, by the parity of its SHA-256.

    A base model that is pretrained on one half has never seen a problem of the other.
    """
    odd = hashlib.sha256(prompt.encode()).digest()[-1] % 2
    return "demo" if odd else "pretraining"


class TaskSpec:
    """One reasoning-gym task with its generator's settings, at one seed."""

    def __init__(self, name: str, settings: Mapping[str, Any], seed: int) -> None:
        """Raises InvalidSettings for a task, or a setting of it, that does not exist."""
        self.name = name
        self._seed = seed
        try:
            self._dataset = library().create_dataset(
                name, size=SEED_STRIDE, seed=seed * SEED_STRIDE, **settings
            )
        except (ValueError, TypeError, AssertionError) as error:
            raise InvalidSettings(f"tasks.{name}: {str(error) or 'not possible'}.") from None

    def record(self, index: int) -> Record:
        """The problem number `index`, as plain JSON with the keys of a problem file.

        Raises InvalidSettings if the generator cannot make one with its settings.
        """
        try:
            entry = self._dataset[index]
        except Exception as error:  # each generator raises its own
            raise InvalidSettings(f"tasks.{self.name}: {str(error) or 'not possible'}.") from None
        return {
            "id": f"{self.name}-{self._seed}-{index}",
            "prompt": entry["question"].strip(),
            "answer": str(entry["answer"]),
            "topic": self.name,
            "verifier": f"reasoning_gym:{self.name}",
            "metadata": json.loads(json.dumps(entry["metadata"])),
        }

    def unique(self, half: Half | None, usable: Callable[[str], bool]) -> Iterator[Record]:
        """Yield problems of one half, or of both, without repeating a prompt, until none is found.

        Skips prompts that are not `usable`.
        """
        seen: set[str] = set()
        misses = 0
        for index in range(SEED_STRIDE):
            record = self.record(index)
            prompt = record["prompt"]
            if prompt not in seen and half in (None, half_of(prompt)) and usable(prompt):
                seen.add(prompt)
                misses = 0
                yield record
                continue
            misses += 1
            # So many misses in a row mean that the generator has run out of new prompts.
            if misses == _MAX_MISSES:
                return

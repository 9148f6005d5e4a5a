"""Base of the vLLM engines, in process or over HTTP: sample from the policy's current adapter.

Each version is loaded under a new name, because under an old name vLLM would answer from key-value
caches of the old weights. It is never merged into the base model, because the base's bfloat16
weights would drift.
"""

import logging
import shutil
import uuid
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pubswap_client.policy.policy import Policy
from pubswap_client.rollout.transformers_engine import Prompts, RolloutEngine, SamplingParameters
from pubswap_client.rollout.vllm_sampling import checked_response, sampling_parameters
from pubswap_protocol.digests import digest_of, hexadecimal
from pubswap_protocol.errors import EngineFault, StaleAdapter
from pubswap_protocol.tensors.adapter import encode_adapter
from pubswap_protocol.tensors.peft_folder import WEIGHTS, write_peft_folder
from pubswap_protocol.tensors.responses import Response

log = logging.getLogger(__name__)

Sampled = tuple[Sequence[int], Sequence[float | None]]
"""A response as vLLM returns it: token ids, and their log-probabilities."""


@dataclass(frozen=True, slots=True)
class AdapterVersion:
    """An adapter saved as a folder. `number` counts from 1, and names are never reused."""

    number: int
    name: str
    digest: str
    path: Path


class HotReloadEngine(RolloutEngine):
    """Loads a version when the policy's adapter has changed. At most two are loaded at a time."""

    def __init__(self, policy: Policy, model: Path, root: Path) -> None:
        """Write versions below `root`, a folder of this engine alone that is emptied at the start.

        Raises FileExistsError if it is a symlink: in a shared folder anyone may have created it,
        and its target is not ours to empty.
        """
        self.policy = policy
        self.root = root.parent.resolve() / root.name
        self._model = str(model)
        # A server outlives this process and may still have caches under an earlier name.
        self._unique = uuid.uuid4().hex[:8]
        self._number = 0
        self._served: AdapterVersion | None = None
        shutil.rmtree(self.root, ignore_errors=True)  # an earlier process's
        self.root.mkdir(parents=True)

    @abstractmethod
    def load(self, version: AdapterVersion) -> None:
        """Load a version everywhere; raises EngineFault or InvalidSettings if it is refused."""

    @abstractmethod
    def unload(self, version: AdapterVersion) -> None:
        """Unload a version, if it is still loaded."""

    @abstractmethod
    def check(self, version: AdapterVersion) -> None:
        """Raises StaleAdapter unless this version is served, by its name, everywhere."""

    @abstractmethod
    def sample(self, prompts: Prompts, parameters: Sequence[dict[str, Any]]) -> list[list[Sampled]]:
        """The responses of the `current` version to each prompt, in the order of their seeds."""

    def generate(
        self, prompts: Prompts, sampling: SamplingParameters, first: int = 0
    ) -> list[list[Response]]:
        """Sample the responses to each prompt, with log-probabilities.

        `first` is the first prompt's index, if these are part of more prompts. vLLM uses the same
        seeds whatever `gumbel` says: with such noise on a GPU, without it on a CPU. Raises
        StaleAdapter if an adapter other than the policy's is served, and EngineFault if vLLM's
        reply cannot be used.
        """
        if not prompts:
            return []
        card, indices = self.policy.card, range(first, first + len(prompts))
        groups = self.sample(prompts, [sampling_parameters(card, sampling, n) for n in indices])
        for group in groups:
            if len(group) != sampling.count:
                raise EngineFault(f"vLLM gave {len(group)} responses instead of {sampling.count}.")
        form = replace(self.policy.form, longest=sampling.max_tokens)
        return [[checked_response(*response, form) for response in group] for group in groups]

    def current(self) -> AdapterVersion:
        """Serve the policy's adapter; returns its version.

        Raises StaleAdapter if something else is still served.
        """
        adapter = encode_adapter(self.policy.card.layout, self.policy.adapter())
        old = self._served
        if old is not None and old.digest == digest_of(adapter):
            try:
                self.check(old)
                return old
            except StaleAdapter as error:
                log.warning("%s Loading the adapter again.", error.detail)
        new = self._served = self._load(adapter)
        if old is not None:
            self.unload(old)
            shutil.rmtree(old.path, ignore_errors=True)
        return new

    def close(self) -> None:
        """Unload the adapter, and delete all versions."""
        served, self._served = self._served, None
        try:
            if served is not None:
                self.unload(served)
        except EngineFault as error:
            log.warning("The adapter could not be unloaded: %s", error.detail)
        finally:
            shutil.rmtree(self.root, ignore_errors=True)

    def _load(self, adapter: bytes) -> AdapterVersion:
        self._number += 1
        digest = digest_of(adapter)
        name = f"pubswap-{hexadecimal(digest)[:16]}-{self._unique}-{self._number}"
        version = AdapterVersion(self._number, name, digest, self.root / name)
        try:
            lora, card = self.policy.settings.lora, self.policy.card
            written = write_peft_folder(version.path, adapter, lora, card, self._model)
            self.load(version)
            self.check(version)
            if (version.path / WEIGHTS).read_bytes() != written:
                raise StaleAdapter(f"{version.path} was changed by something other than its owner.")
        except BaseException:
            shutil.rmtree(version.path, ignore_errors=True)
            raise
        return version

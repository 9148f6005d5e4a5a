"""Keeping an engine on the policy's current adapter.

A version is loaded under a name that was never used before: under an old name, vLLM would answer
from key-value caches of the old weights. It is never merged into the base model, whose bfloat16
weights would drift.
"""

import logging
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pubswap_client.policy.policy import Policy
from pubswap_client.rollout.peft_folder import WEIGHTS, write_peft_folder
from pubswap_protocol.digests import digest_of, hexadecimal
from pubswap_protocol.errors import StaleAdapter
from pubswap_protocol.tensors.adapter import encode_adapter


@dataclass(frozen=True, slots=True)
class AdapterVersion:
    """An adapter as a folder; `number` counts from 1, and no two ever have the same name."""

    number: int
    name: str
    digest: str
    path: Path

    def check_file(self) -> None:
        """Raises StaleAdapter unless the folder's weights are those that were written."""
        if digest_of((self.path / WEIGHTS).read_bytes()) != self.digest:
            raise StaleAdapter(f"{self.path} was changed by something else than its owner.")


class AdapterFolders:
    """The folders of one engine, below `root`, which is its own and is emptied at the start."""

    def __init__(self, policy: Policy, root: Path, base_model: str) -> None:
        self.policy = policy
        self.root = root.resolve()
        self.base_model = base_model
        # A server outlives us and may have cached what it computed under an earlier name.
        self._unique = uuid.uuid4().hex[:8]
        self._number = 0
        self.clear()

    def current(self) -> bytes:
        """The policy's adapter now, as the canonical file."""
        return encode_adapter(self.policy.card.layout, self.policy.adapter())

    def write(self, adapter: bytes) -> AdapterVersion:
        """A new version; its folder is there completely or not at all."""
        self._number += 1
        digest = digest_of(adapter)
        name = f"pubswap-{hexadecimal(digest)[:16]}-{self._unique}-{self._number}"
        version = AdapterVersion(self._number, name, digest, self.root / name)
        partial = self.root / f".{name}"
        settings, card = self.policy.settings, self.policy.card
        write_peft_folder(partial, adapter, settings.lora, card, self.base_model)
        partial.replace(version.path)
        return version

    def remove(self, version: AdapterVersion) -> None:
        """Delete a version's folder."""
        shutil.rmtree(version.path, ignore_errors=True)

    def clear(self) -> None:
        """Delete all versions, also those of an earlier process."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(parents=True)


log = logging.getLogger(__name__)


class Loader(Protocol):
    """Where adapters are loaded."""

    def load(self, version: AdapterVersion) -> None:
        """Load a version everywhere; raises EngineFault or InvalidSettings if it is refused."""
        ...

    def unload(self, version: AdapterVersion) -> None:
        """Forget a version, if it is still there."""
        ...

    def check(self, version: AdapterVersion) -> None:
        """Raises StaleAdapter unless this version is served, by its name, everywhere."""
        ...


class HotReload:
    """Loads a version when the policy's adapter has changed; at most two are loaded at a time."""

    def __init__(self, folders: AdapterFolders, loader: Loader) -> None:
        self._folders = folders
        self._loader = loader
        self._served: AdapterVersion | None = None

    def current(self) -> AdapterVersion:
        """The version that holds the policy's adapter, which the engine serves on return.

        Raises StaleAdapter if the engine serves something else in spite of it.
        """
        adapter = self._folders.current()
        served = self._served
        if served is None or served.digest != digest_of(adapter) or not self._is_there(served):
            self._served = self._load(adapter)
            if served is not None:
                self._loader.unload(served)
                self._folders.remove(served)
            served = self._served
        return served

    def close(self) -> None:
        """Unload what is served, and delete its folder."""
        served, self._served = self._served, None
        try:
            if served is not None:
                self._loader.unload(served)
        finally:
            self._folders.clear()

    def _is_there(self, version: AdapterVersion) -> bool:
        try:
            self._loader.check(version)
        except StaleAdapter as error:
            log.warning("%s Loading the adapter again.", error.detail)
            return False
        return True

    def _load(self, adapter: bytes) -> AdapterVersion:
        version = self._folders.write(adapter)
        try:
            self._loader.load(version)
            self._loader.check(version)
            version.check_file()
        except BaseException:
            self._folders.remove(version)
            raise
        return version

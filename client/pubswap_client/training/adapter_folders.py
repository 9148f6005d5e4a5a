"""Versions of the policy's adapter as PEFT folders, which is all that vLLM loads."""

import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path

from pubswap_client.peft_folder import WEIGHTS, write_peft_folder
from pubswap_client.training.policy import Policy
from pubswap_protocol.adapter import encode_adapter
from pubswap_protocol.digests import digest_of, hexadecimal
from pubswap_protocol.errors import StaleAdapter


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

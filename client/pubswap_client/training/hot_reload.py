"""Keeping an engine on the policy's current adapter.

A version is loaded under a name that was never used before: under an old name, vLLM would answer
from key-value caches of the old weights. It is never merged into the base model, whose bfloat16
weights would drift.
"""

import logging
from typing import Protocol

from pubswap_client.training.adapter_folders import AdapterFolders, AdapterVersion
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import StaleAdapter

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

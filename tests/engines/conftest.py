"""The demo's model as a policy, and real replicas of it that each test may use."""

import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from pubswap_client.demo.demos import MODEL
from pubswap_client.demo.processes import Processes
from pubswap_protocol.model import model_card
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import Adapter
from support.coordinator.replicas import LORA, start_replica, wait_for_replica

if TYPE_CHECKING:
    from pubswap_client.policy.policy import Policy

SETTINGS = RunSettings.model_validate(
    {
        "lora": {"rank": 8, "alpha": 16},
        "grpo": {"max_prompt_tokens": 64, "max_response_tokens": 32},
    }
)

# vLLM's classes with a vision tower import torchvision, whose build for CPUs is on few indexes.
HAS_TORCHVISION = find_spec("torchvision") is not None
STAND_IN = """
import sys
from unittest.mock import MagicMock

transforms = ("transforms", "transforms.functional", "transforms.v2", "transforms.v2.functional")
for name in ("torchvision", *(f"torchvision.{name}" for name in ("io", *transforms))):
    sys.modules[name] = MagicMock(__spec__=__spec__, __version__="0.28")
"""


@pytest.fixture
def no_images(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM loads models with a vision tower, and reads no image unless torchvision is installed."""
    if not HAS_TORCHVISION:
        folder = tmp_path_factory.mktemp("stand-in")
        (folder / "torchvision.py").write_text(STAND_IN)
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)


@pytest.fixture(scope="session")
def policy() -> "Policy":
    """The demo's model in float32 with an adapter; each test gives it the adapter it needs."""
    from pubswap_client.policy.policy import Policy

    return Policy.load(MODEL, model_card(MODEL, SETTINGS.lora, "m", None), SETTINGS, device="cpu")


@pytest.fixture(scope="session")
def adapter(policy: "Policy") -> Callable[[int], Adapter]:
    """A function that makes an adapter from a seed; two of them are far apart."""

    def make(seed: int) -> Adapter:
        rng = np.random.default_rng(seed)
        return {
            name: rng.normal(0, 0.05, shape).astype(np.float32)
            for name, shape in policy.card.layout.tensors.items()
        }

    return make


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The URLs of two replicas as they should be, and of one that was started in a wrong way."""
    logs: Path = tmp_path_factory.mktemp("replicas")
    with Processes(logs) as processes:
        urls = {name: start_replica(processes, name) for name in ("first", "second")}
        urls["wrong"] = start_replica(processes, "wrong", LORA, updating=False)
        for url in urls.values():
            wait_for_replica(processes, url)
        yield urls

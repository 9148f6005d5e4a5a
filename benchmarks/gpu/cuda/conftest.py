"""A GPU if there is one; otherwise the same tests run on the CPU, in float32."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.gpu.context import Context
from benchmarks.gpu.plan import FIRST
from pubswap_client.policy.policy import Policy


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(scope="session")
def context(device: torch.device, tmp_path_factory: pytest.TempPathFactory) -> Context:
    """A context with tiny models of the real architectures."""
    folder = tmp_path_factory.mktemp("gpu")
    return Context(device, True, folder / "models", folder, time.monotonic() + 3600)


@pytest.fixture
def policy(context: Context) -> Iterator[Policy]:
    """A tiny Qwen3 with an adapter that has an effect."""
    yield context.policy(FIRST)
    context.free()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write each outcome, as soon as it is known, to the file that `make gpu` names."""
    record = os.environ.get("GPU_TESTS_RECORD")
    if record is None or (report.when != "call" and report.passed):
        return
    outcome = {
        "name": report.nodeid.rpartition("/")[2],
        "outcome": report.outcome,
        "seconds": report.duration,
    }
    with Path(record).open("a", encoding="utf-8") as file:
        file.write(json.dumps(outcome) + "\n")

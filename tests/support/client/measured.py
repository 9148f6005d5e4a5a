"""Actual memory of sampling and of an update, with the estimate; a test runs this as a program.

Prints JSON: for each, the measured growth of the process and the estimate, in bytes.
"""

import gc
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import torch

from pubswap_client.policy.groups import Group, collate
from pubswap_client.policy.memory import Shape
from pubswap_client.policy.policy import Policy
from pubswap_client.rollout.memory import Lengths, rollout_bytes
from pubswap_client.rollout.transformers_engine import SamplingParameters, TransformersEngine
from pubswap_client.training.memory import TokenBudget, factor_bytes, update_bytes
from pubswap_client.training.update import UpdateContext, update
from pubswap_protocol.model import model_card
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.responses import Response

PROMPT, COUNT = 40, 8


def growth(work: Callable[[], object]) -> int:
    """This process's peak memory during the work, above what it held before."""
    process = psutil.Process()
    gc.collect()
    at_start = peak = process.memory_info().rss
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, process.memory_info().rss)
            time.sleep(0.001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    work()
    done.set()
    watcher.join()
    return peak - at_start


def groups(length: int, count: int, vocabulary: int) -> list[Group]:
    """Groups of random responses, half of them right."""
    rng = np.random.default_rng(0)
    return [
        Group(
            rng.integers(3, vocabulary, PROMPT).tolist(),
            [
                Response(
                    rng.integers(3, vocabulary, length).astype(np.int32),
                    np.full(length, -3, np.float32),
                )
                for _ in range(COUNT)
            ],
            [1.0, 0.0] * (COUNT // 2),
        )
        for _ in range(count)
    ]


def main(folder: Path, length: int, prompts: int, checkpointing: bool) -> None:
    """Sample, and update on as much: `prompts` groups of responses of this length in one pack."""
    torch.set_num_threads(1)
    settings = RunSettings.model_validate({"lora": {"rank": 8, "alpha": 16}})
    policy = Policy.load(folder, model_card(folder, settings.lora, "m", None), settings, "cpu")
    shape = Shape.of(policy.model.config, policy.dtype)
    tokens = prompts * (PROMPT + COUNT * (length - 1))
    start = [factor.detach().clone() for factor in policy.trainable()]

    def step(width: int, number: int, rate: float) -> None:
        batch = collate(groups(width, number, policy.card.vocabulary))
        optimizer = torch.optim.AdamW(policy.trainable(), lr=rate)
        context = UpdateContext(policy, TokenBudget(tokens), checkpointing)
        update(context, optimizer, batch, start)

    def sample(width: int) -> None:
        prompt = list(range(3, 3 + PROMPT))
        TransformersEngine(policy).generate(
            [prompt] * prompts, SamplingParameters(COUNT, width, 1.0, 0)
        )

    step(2, 1, 0.0)  # warm up: allocate what is allocated only once
    for factor in policy.trainable():
        factor.grad = None
    sample(2)
    measurements = {
        "sampling": [
            growth(lambda: sample(length)),
            rollout_bytes(shape, prompts * COUNT, Lengths(PROMPT, length, COUNT)),
        ],
        "update": [
            growth(lambda: step(length, prompts, 1e-3)),
            # Without the factors and their round-start values, which exist already.
            update_bytes(shape, tokens, checkpointing, cuda=False)
            + factor_bytes(policy.card.layout.parameters) * 3 // 5,
        ],
    }
    print(json.dumps(measurements))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "checkpointed")

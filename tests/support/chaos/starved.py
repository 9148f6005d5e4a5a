"""An update that runs out of memory halfway; a test runs this as a program.

Prints the budget left, and writes the factors after an undisturbed and after the starved update.
"""

import gc
import resource
import sys
from pathlib import Path

import numpy as np
import torch

from pubswap_client.policy.groups import Group, collate
from pubswap_client.policy.policy import Policy
from pubswap_client.training.memory import TokenBudget
from pubswap_client.training.update import UpdateContext, update
from pubswap_protocol.model import model_card
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.responses import Response

HEADROOM = 100 << 20  # bytes that the starved update may allocate
EVERYTHING = 4096  # tokens: more than the batch has


def main(folder: Path, out: Path) -> None:
    """Update twice from the same adapter: with all memory, then with little."""
    torch.set_num_threads(1)
    settings = RunSettings.model_validate({"lora": {"rank": 2, "alpha": 4}})
    policy = Policy.load(folder, model_card(folder, settings.lora, "m", None), settings, "cpu")
    rng = np.random.default_rng(0)
    groups = [
        Group(
            rng.integers(3, 40, 50).tolist(),
            [
                Response(rng.integers(3, 40, 90).astype(np.int32), np.full(90, -3, np.float32))
                for _ in range(8)
            ],
            [1.0, 0.0] * 4,
        )
        for _ in range(4)
    ]
    batch = collate(groups)
    start = policy.adapter()
    budget = TokenBudget(EVERYTHING)
    for name in ("undisturbed", "starved"):
        policy.load_adapter(start)
        optimizer = torch.optim.SGD(policy.trainable(), lr=1.0)
        if name == "starved":
            gc.collect()
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + HEADROOM
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        update(UpdateContext(policy, budget), optimizer, batch, [])
        np.savez(out / f"{name}.npz", **policy.adapter())
    print(budget.tokens)  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

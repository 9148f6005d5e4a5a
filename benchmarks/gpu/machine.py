"""Describe this machine as JSON, in a program of its own so that its caller holds no GPU memory.

That it runs at all shows that all imports work.
"""

import json
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

PACKAGES = (
    *("torch", "transformers", "peft", "accelerate", "triton", "liger-kernel"),
    *("kernels", "flash-attn", "trl", "vllm"),
)


def describe(device: str) -> dict[str, Any]:
    """Versions, and the GPU; raises RuntimeError if a GPU is asked for and there is none."""
    import torch

    import benchmarks.gpu.measures  # noqa: F401

    machine = {"python": platform.python_version(), "packages": _versions()}
    if device == "cpu":
        return machine | {"device": f"{platform.machine()} CPU"}
    if not torch.cuda.is_available():
        raise RuntimeError(
            f"torch {torch.__version__} finds no GPU; `make gpu DRY=1` runs the same on a CPU."
        )
    properties = torch.cuda.get_device_properties(0)
    return machine | {
        "device": properties.name,
        "memory_bytes": properties.total_memory,
        "capability": [properties.major, properties.minor],
        "cuda": torch.version.cuda,
    }


def _versions() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


if __name__ == "__main__":
    sys.stdout.write(json.dumps(describe(sys.argv[1])) + "\n")

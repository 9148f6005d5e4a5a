"""Our Gumbel noise against the installed vLLM's own kernel for GPUs, interpreted on the CPU."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.coordinator.replicas import needs_vllm

KERNEL = "v1/worker/gpu/sample/gumbel.py"

# In a process of its own: whether Triton interprets is decided when it is imported. vLLM's own
# modules hide Triton where there is no GPU, so that the one file is loaded alone.
PROGRAM = """
import importlib.util, json, sys, types
import torch, triton, triton.language as tl
from pubswap_client.rollout.gumbel import gumbel_sample

hidden = types.ModuleType("vllm.triton_utils")
hidden.tl, hidden.triton = tl, triton
sys.modules |= {"vllm": types.ModuleType("vllm"), "vllm.triton_utils": hidden}
spec = importlib.util.spec_from_file_location("kernel", sys.argv[1])
kernel = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kernel)
torch.manual_seed(0)
rows, vocabulary = 64, 3000
logits = torch.randn(rows, vocabulary) * 2
seeds, positions = torch.randint(0, 1 << 62, (rows,)), torch.randint(0, 1 << 20, (rows,))
theirs = kernel.gumbel_sample(
    logits.clone(), torch.arange(rows), torch.full((rows,), 0.7), seeds, positions,
    apply_temperature=True, is_drafting=False,
)
ours = gumbel_sample(logits, 0.7, seeds, positions)
print(json.dumps([theirs.tolist(), ours.tolist()]))
"""


@needs_vllm
@pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")
def test_our_draws_are_those_of_vllms_kernel() -> None:
    """Token for token, for random logits, seeds and positions."""
    spec = find_spec("vllm")
    assert spec is not None and spec.submodule_search_locations
    path = Path(spec.submodule_search_locations[0]) / KERNEL
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, path],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        check=True,
    )
    theirs, ours = json.loads(done.stdout.splitlines()[-1])
    assert theirs == ours
    assert len(set(ours)) > 32

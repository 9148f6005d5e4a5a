"""Two steps on a tiny model, by one process and by several; a test runs this as a program.

The leader writes the losses, factors and sampled tokens of each kind of step, then sleeps long.
"""

import json
import logging
import sys
import time
from contextlib import closing
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from pubswap_client.distributed.launch import die_with_the_leader, followers, launched_rank
from pubswap_client.distributed.process_group import (
    ProcessGroup,
    ProcessGroupEngine,
    follow,
    start_engine,
)
from pubswap_client.policy.groups import Group, collate
from pubswap_client.policy.policy import Policy
from pubswap_client.policy.self_check import check_packed_path
from pubswap_client.rollout.transformers_engine import RolloutEngine, SamplingParameters
from pubswap_client.settings import ClientSettings, VllmSettings
from pubswap_client.training.memory import TokenBudget
from pubswap_client.training.privacy import GroupClipping, StepNoise
from pubswap_client.training.team import SINGLE, Team
from pubswap_client.training.update import UpdateContext, update
from pubswap_protocol.draws import SecretDraws
from pubswap_protocol.model import model_card
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.responses import Response
from support.vllm.fake_engine import FakeEngine

VLLM = VllmSettings(extra={"kv_cache_memory_bytes": 1 << 27})
GRPO = {
    "kl_beta": 0.05,
    "max_prompt_tokens": 16,
    "max_response_tokens": 16,
}
NOISE = StepNoise(GroupClipping(0.05, 3), 0.5, SecretDraws(bytes(32)))
PROMPTS = [[4, 13, 5, 17], [6, 7, 8, 9, 10, 11, 17], [5, 17]]


def main(folder: Path, out: Path, processes: int, kinds: list[str]) -> None:
    """Be the leader of `processes`, or one of its followers.

    A kind is a word or two and the number of responses to a prompt: `private sharded 2`.
    """
    torch.set_num_threads(1)
    logging.basicConfig()
    if any("vllm" in kind for kind in kinds) and find_spec("vllm") is None:
        FakeEngine().install(sys.modules)
    if launched_rank() is None:
        with followers(processes - 1):
            results = {kind: {"one": _alone(folder, out.parent / "one", kind)} for kind in kinds}
            process_group = ProcessGroup(cpu=True)
            for kind in kinds:
                results[kind]["several"] = _together(
                    process_group, folder, out.parent / "all", kind
                )
            half = out.with_suffix(".half")
            half.write_text(json.dumps(results))
            half.rename(out)
            time.sleep(600)
    else:
        die_with_the_leader()
        process_group = ProcessGroup(cpu=True)
        for kind in kinds:
            policy = _joint_policy(process_group, folder, kind)
            start = partial(start_engine, _client(kind), policy, folder, rank=process_group.rank)
            follow(process_group, policy, start, checkpointing=False)


def _client(kind: str) -> ClientSettings:
    return ClientSettings(engine="vllm" if "vllm" in kind else "transformers", vllm=VLLM)


def _alone(folder: Path, state: Path, kind: str) -> dict[str, Any]:
    """The steps by one process, while the others are still starting."""
    policy = _policy(folder, None)
    with closing(start_engine(_client(kind), policy, folder, state)) as engine:
        return _lead(policy, engine, SINGLE, kind)


def _together(process_group: ProcessGroup, folder: Path, state: Path, kind: str) -> dict[str, Any]:
    """The steps by all processes together."""
    policy = _joint_policy(process_group, folder, kind)
    start = partial(start_engine, _client(kind), policy, folder)
    with closing(ProcessGroupEngine(process_group, policy, state, start)) as engine:
        result = _lead(policy, engine, process_group, kind)
    process_group.broadcast_object(None)  # makes the followers stop following, and nothing else
    return result


def _joint_policy(process_group: ProcessGroup, folder: Path, kind: str) -> Policy:
    process_group.lockstep = "sharded" in kind
    policy = _policy(folder, process_group)
    check_packed_path(policy)
    return policy


def _policy(folder: Path, process_group: ProcessGroup | None) -> Policy:
    settings = RunSettings.model_validate({"lora": {"rank": 2, "alpha": 4}, "grpo": GRPO})
    mesh = process_group.mesh() if process_group is not None and process_group.lockstep else None
    return Policy.load(
        folder, model_card(folder, settings.lora, "m", None), settings, "cpu", mesh=mesh
    )


def _lead(policy: Policy, engine: RolloutEngine, team: Team, kind: str) -> dict[str, Any]:
    noise = NOISE if "private" in kind else None
    rows = int(kind.split()[-1])
    rng = np.random.default_rng(1)
    layout = policy.card.layout.tensors
    policy.load_adapter(
        {n: rng.normal(0, 0.2, s).astype(np.float32) for n, s in sorted(layout.items())}
    )
    optimizer = torch.optim.AdamW(policy.trainable(), lr=1e-3)
    losses, tokens = [], []
    for step in range(2):
        sampled = engine.generate(PROMPTS, SamplingParameters(rows, 12, 0.7, step))
        tokens.append([[r.tokens.tolist() for r in group] for group in sampled])
        # The one group of the second step has fewer rows than there are processes.
        prompts, rewards = PROMPTS[: 3 if step == 0 else 1], [1.0, *[0.0] * (rows - 1)]
        fixed = [Group(prompt, _fixed(rng, rows), rewards) for prompt in prompts]
        batch = collate(fixed)
        context = UpdateContext(policy, TokenBudget(40), team=team)
        metrics = update(context, optimizer, batch, [], noise=noise)
        losses.append(metrics.loss)
    factors = {name: array.tolist() for name, array in policy.adapter().items()}
    held = sum(_local(parameter).numel() for parameter in policy.model.parameters())
    return {"losses": losses, "tokens": tokens, "held": held, "factors": factors}


def _local(parameter: torch.Tensor) -> torch.Tensor:
    """This process's part of a parameter."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def _fixed(rng: np.random.Generator, rows: int) -> list[Response]:
    lengths = rng.integers(1, 13, rows)
    return [
        Response(rng.integers(3, 40, n).astype(np.int32), rng.uniform(-4, -1, n).astype(np.float32))
        for n in lengths
    ]


if __name__ == "__main__":
    model, result, count, *requested = sys.argv[1:]
    main(Path(model), Path(result), int(count), requested)

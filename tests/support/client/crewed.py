"""Two steps on a tiny model, by as many processes as there are; run by a test, as a program.

The leader writes losses, factors and sampled tokens.
"""

import json
import logging
import sys
import time
from contextlib import closing
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from pubswap_client.distributed.launch import die_with_the_leader, followers, launched_rank
from pubswap_client.distributed.local_engine import start_engine
from pubswap_client.distributed.process_group import ProcessGroup, ProcessGroupEngine, follow
from pubswap_client.policy.groups import Group, collate
from pubswap_client.policy.policy import Policy
from pubswap_client.policy.self_check import check_packed_path
from pubswap_client.rollout.transformers_engine import RolloutEngine
from pubswap_client.settings import ClientSettings, VllmSettings
from pubswap_client.training.memory import TokenBudget
from pubswap_client.training.privacy import GroupClipping, StepNoise
from pubswap_client.training.team import SINGLE, Team
from pubswap_client.training.update import update
from pubswap_protocol.draws import SecretDraws
from pubswap_protocol.model import model_card
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.responses import Response
from support.vllm.fake_engine import FakeEngine

VLLM = VllmSettings(kv_cache_gib=0.1)
GRPO = {
    "kl_beta": 0.05,
    "zero_variance": "drop",
    "max_prompt_tokens": 16,
    "max_response_tokens": 16,
}
NOISE = StepNoise(GroupClipping(0.05, 3), 0.5, SecretDraws(bytes(32)))
PROMPTS = [[4, 13, 5, 17], [6, 7, 8, 9, 10, 11, 17], [5, 17]]


def main(folder: Path, out: Path, processes: int, kind: str, rows: int) -> None:
    """Be the leader of `processes`, or one of its followers."""
    torch.set_num_threads(1)
    logging.basicConfig()
    sharded, busy = "sharded" in kind, kind == "busy"
    noise = NOISE if "private" in kind else None
    settings = ClientSettings(engine="vllm" if kind == "vllm" else "transformers", vllm=VLLM)
    if kind == "vllm" and find_spec("vllm") is None:
        FakeEngine().install(sys.modules)
    if processes == 1:
        policy = _policy(folder, None)
        with closing(start_engine(settings, policy, folder, out.parent)) as engine:
            _lead(policy, engine, SINGLE, out, rows, noise)
    elif launched_rank() is None:
        with followers(processes - 1):
            process_group = ProcessGroup(cpu=True, sharded=sharded)
            policy = _policy(folder, process_group)
            check_packed_path(policy)
            if busy:
                out.with_suffix(".busy").touch()
                time.sleep(600)
            start = partial(start_engine, settings, policy, folder)
            with closing(ProcessGroupEngine(process_group, policy, out.parent, start)) as engine:
                _lead(policy, engine, process_group, out, rows, noise)
            process_group.close()
    else:
        die_with_the_leader()
        process_group = ProcessGroup(cpu=True, sharded=sharded)
        policy = _policy(folder, process_group)
        check_packed_path(policy)
        start = partial(start_engine, settings, policy, folder, rank=process_group.rank)
        follow(process_group, policy, start, checkpointing=False)
        process_group.close()


def _policy(folder: Path, process_group: ProcessGroup | None) -> Policy:
    settings = RunSettings.model_validate({"lora": {"rank": 2, "alpha": 4}, "grpo": GRPO})
    mesh = process_group.mesh() if process_group is not None and process_group.lockstep else None
    return Policy.load(
        folder, model_card(folder, settings.lora, "m", None), settings, "cpu", mesh=mesh
    )


def _lead(
    policy: Policy,
    engine: RolloutEngine,
    team: Team,
    out: Path,
    rows: int,
    noise: StepNoise | None = None,
) -> None:
    rng = np.random.default_rng(1)
    layout = policy.card.layout.tensors
    policy.load_adapter(
        {n: rng.normal(0, 0.2, s).astype(np.float32) for n, s in sorted(layout.items())}
    )
    optimizer = torch.optim.AdamW(policy.trainable(), lr=1e-3)
    losses, tokens = [], []
    for step in range(2):
        sampled = engine.generate(PROMPTS, rows, 12, 0.7, seed=step)
        tokens.append([[r.tokens.tolist() for r in group] for group in sampled])
        # Equal rewards in the second step leave fewer rows than there are processes.
        rewards = [[1.0, *[0.0] * (rows - 1)]] + [[float(step == 0), *[0.0] * (rows - 1)]] * 2
        fixed = [Group(p, _fixed(rng, rows), r) for p, r in zip(PROMPTS, rewards, strict=True)]
        batch = collate(fixed, (1,), 1e-6)
        budget = TokenBudget(40)
        metrics = update(
            policy, optimizer, batch, policy.settings, [], budget, team=team, noise=noise
        )
        losses.append(metrics.loss)
    np.savez(out.with_suffix(".npz"), **policy.adapter())
    held = sum(_local(parameter).numel() for parameter in policy.model.parameters())
    out.write_text(json.dumps({"losses": losses, "tokens": tokens, "held": held}))


def _local(parameter: torch.Tensor) -> torch.Tensor:
    """What this process holds of a parameter."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def _fixed(rng: np.random.Generator, rows: int) -> list[Response]:
    lengths = rng.integers(1, 13, rows)
    return [
        Response(rng.integers(3, 40, n).astype(np.int32), rng.uniform(-4, -1, n).astype(np.float32))
        for n in lengths
    ]


if __name__ == "__main__":
    model, result, count, kind, per_prompt = sys.argv[1:]
    main(Path(model), Path(result), int(count), kind, int(per_prompt))

"""Training resumes from a checkpoint taken on this device."""

from pathlib import Path

import numpy as np
import torch

from benchmarks.gpu.context import Context
from benchmarks.gpu.measures.step import coin
from benchmarks.gpu.plan import FIRST
from benchmarks.workload import start_adapter, text
from pubswap_client.rollout.transformers_engine import TransformersEngine
from pubswap_client.state.journal import Checkpoint, Journal, JournalOwner, RoundKey
from pubswap_client.training.memory import TokenBudget
from pubswap_client.training.trainer import LocalTrainer
from pubswap_client.training.update import UpdateContext
from pubswap_protocol.digests import digest_of
from pubswap_protocol.problems import Problem

START = digest_of(b"start")


def trainer_of(context: Context) -> LocalTrainer:
    policy = context.policy(FIRST, mean=context.scale.mean)
    prompts = context.workload(policy).prompts
    problems = [Problem(id=str(n), prompt=text(p), answer="-") for n, p in enumerate(prompts)]
    engine = TransformersEngine(policy)
    updates = UpdateContext(policy, TokenBudget(4096))
    trainer = LocalTrainer(updates, engine, "a", problems, coin)
    trainer.begin_round(1, start_adapter(policy.card.layout))
    return trainer


def test_a_step_after_a_restart_is_the_step_without_one(context: Context, tmp_path: Path) -> None:
    """Factors and AdamW's state are restored from disk: bit for bit on a CPU, closely on a GPU."""
    trainer = trainer_of(context)
    metrics = trainer.private_step(1)
    owner = JournalOwner("run", "a", START)
    saved = Checkpoint(RoundKey(1, START), (metrics,), trainer.snapshot())
    Journal(tmp_path, owner).save(saved)
    trainer.private_step(2)
    expected = trainer.adapter()

    again = trainer_of(context)
    checkpoint = Journal(tmp_path, owner).checkpoint()
    assert checkpoint is not None
    again.restore(checkpoint.snapshot)
    again.private_step(2)
    actual = again.adapter()
    moved = sum(float(np.abs(expected[n] - checkpoint.snapshot.adapter[n]).sum()) for n in expected)
    apart = sum(float(np.abs(expected[n] - actual[n]).sum()) for n in expected)
    assert moved > 0
    assert apart <= (0.0 if context.device.type == "cpu" else 0.1 * moved)
    context.free()
    assert torch.isfinite(torch.tensor(again.adapter()[next(iter(expected))])).all()

"""A client's world without a network, created anew for each test."""

import copy
import itertools
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from pubswap_client.daemon.heartbeats import Heartbeats
from pubswap_client.policy.policy import Dtype, Policy
from pubswap_client.rollout.transformers_engine import TransformersEngine
from pubswap_client.state.privacy import PrivacyBudget
from pubswap_client.training.memory import TokenBudget
from pubswap_client.training.trainer import LocalTrainer
from pubswap_client.training.update import UpdateContext
from pubswap_protocol import files
from pubswap_protocol.digests import digest_of
from pubswap_protocol.messages import RunState, RunView
from pubswap_protocol.model import ModelCard
from pubswap_protocol.problems import Problem
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.responses import Response
from support.client.one_client import (
    CALLS,
    PUBLIC,
    ROUNDS,
    STEPS,
    ClientPoints,
    FakeCoordinator,
    World,
)

Engine = Callable[[Policy], Any]
DIGEST = digest_of(b"")


@pytest.fixture
def world(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tiny_qwen3: Path,
    card_of: Callable[[Path], ModelCard],
    run_settings: RunSettings,
    problems: list[Problem],
    even_scorer: Any,
    make_responses: Callable[..., list[Response]],
) -> Callable[..., World]:
    """A function that creates a world with the given engine and changed settings."""
    torch.set_num_threads(1)
    card = card_of(tiny_qwen3)
    numbers = itertools.count()
    points = ClientPoints()

    def fill(descriptor: int, data: memoryview, write: Any = files.write_all) -> None:
        # Files are written in many pieces; kill points are in the header and in the final digest.
        begun = os.lseek(descriptor, 0, os.SEEK_CUR)
        write(descriptor, data[: len(data) // 2])
        if not begun or len(data) == len(DIGEST):
            points.hit()
        write(descriptor, data[len(data) // 2 :])

    monkeypatch.setattr(files, "write_all", fill)
    monkeypatch.setattr(Heartbeats, "step", points.around(Heartbeats.step))
    monkeypatch.setattr(Path, "replace", points.around(Path.replace))

    def make(engine: Engine = TransformersEngine, dtype: Dtype = "auto", **changes: Any) -> World:
        short = {"max_response_tokens": 8}
        values = run_settings.model_dump()
        values["grpo"] |= short | changes.pop("grpo", {})
        values |= {"local_steps": STEPS, "rounds": ROUNDS} | changes
        settings = RunSettings.model_validate(values)
        run = RunView(
            id="r1",
            name="run",
            state=RunState.TRAINING,
            paused=False,
            round=1,
            settings=settings,
            model=card,
            created_at="2025-01-01T00:00:00Z",
        )
        peer = [make_responses([4, 5, 6, 7], seed, donated=range(4)) for seed in PUBLIC]
        coordinator = FakeCoordinator(run, problems, peer)
        for name in CALLS:
            setattr(coordinator, name, points.around(getattr(coordinator, name)))

        loaded = Policy.load(tiny_qwen3, card, settings, device="cpu", dtype=dtype)

        def trainer(privacy: PrivacyBudget | None = None) -> LocalTrainer:
            policy = copy.deepcopy(loaded)  # like loading it in a new process, but ten times faster
            return LocalTrainer(
                UpdateContext(policy, TokenBudget(400)),
                engine(policy),
                "a",
                problems,
                even_scorer,
                privacy=privacy and privacy.draws,
            )

        state = tmp_path / f"{next(numbers)}"
        if settings.privacy is None:
            return World(coordinator, state, trainer, points, {})
        state.mkdir()
        # All worlds of a test share one secret, because their noise would otherwise differ.
        (state / "privacy-budget.json").write_text(json.dumps({"secret": 32 * "5e"}))
        budget = partial(PrivacyBudget, state, run.id, settings, len(problems))
        return World(coordinator, state, trainer, points, {}, budget)

    return make

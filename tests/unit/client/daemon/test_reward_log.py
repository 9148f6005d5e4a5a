"""A simulated client's rewards, through kills."""

from pathlib import Path

import numpy as np

from pubswap_client.daemon.reporters import StepReport
from pubswap_client.state.journal import Checkpoint, Journal, JournalOwner
from pubswap_client.training.metrics import StepMetrics
from pubswap_client.training.trainer import Snapshot
from pubswap_protocol.settings import RunSettings
from pubswap_simulation.results import RewardLog

DIGEST = "blake3:" + "0" * 64


def metrics(reward: float) -> StepMetrics:
    return StepMetrics(
        loss=0.0,
        kl=0.0,
        clip_share=0.0,
        reward=reward,
        zero_variance_share=0.0,
        response_tokens=1.0,
        tokens=1,
        seconds=1.0,
        grad_norm=0.0,
    )


def report(log: RewardLog, round_: int, step: int, reward: float) -> None:
    log.step(StepReport(round_, 3, step, 2, False, [metrics(reward)]))


def test_a_log_goes_on_after_a_kill(tmp_path: Path) -> None:
    """A torn line is done again, a step made twice counts once, and each step was told."""
    told: list[int] = []
    path = tmp_path / "rewards"
    log = RewardLog(path, lambda: told.append(1))
    report(log, 1, 1, 0.25)
    report(log, 1, 2, 0.5)
    with path.open("a") as file:
        file.write("[3, 0.7")
    again = RewardLog(path, lambda: told.append(1))
    report(again, 1, 2, 0.5)
    report(again, 2, 1, 0.75)
    assert again.rewards() == RewardLog(path, lambda: None).rewards() == [0.25, 0.5, 0.75]
    assert again.steps == 3
    assert len(told) == 4


def test_a_step_that_was_kept_but_not_reported_is_taken_from_the_checkpoint(
    tmp_path: Path,
) -> None:
    """A kill between the two loses no reward."""
    journal = Journal(tmp_path, JournalOwner("run", "client-1", DIGEST))
    snapshot = Snapshot(adapter={"a": np.zeros((1, 1), np.float32)}, optimizer={})
    journal.save(Checkpoint(2, DIGEST, (metrics(0.5), metrics(1.0)), snapshot))
    log = RewardLog(tmp_path / "rewards", lambda: None)
    for step, reward in ((1, 0.0), (2, 0.25)):
        report(log, 1, step, reward)
    report(log, 2, 1, 0.5)
    log.catch_up(journal, RunSettings(local_steps=2))
    assert log.rewards() == [0.0, 0.25, 0.5, 1.0]


def test_a_pipelined_step_is_found_by_its_number(tmp_path: Path) -> None:
    """Step 3 was updated on before step 2, which is still to come."""
    settings = RunSettings.model_validate(
        {"local_steps": 4, "swap": {"period": 2, "mode": "pipelined"}}
    )
    journal = Journal(tmp_path, JournalOwner("run", "client-1", DIGEST))
    snapshot = Snapshot(adapter={"a": np.zeros((1, 1), np.float32)}, optimizer={})
    journal.save(Checkpoint(1, DIGEST, (metrics(0.5), metrics(1.0)), snapshot))
    log = RewardLog(tmp_path / "rewards", lambda: None)
    report(log, 1, 1, 0.5)
    log.catch_up(journal, settings)
    assert log.steps == 2
    report(log, 1, 2, 0.75)
    assert log.rewards() == [0.5, 0.75, 1.0]

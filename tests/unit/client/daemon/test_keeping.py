"""Checkpoints are written while training goes on: every reported step is on disk, and failures are
raised.
"""

import errno
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pubswap_client.daemon.reporters import LogLines, StepReport
from pubswap_client.state.journal import Journal, JournalOwner
from pubswap_protocol import files
from pubswap_protocol.errors import NotSaved
from support.client.one_client import ROUNDS, STEPS, World


class Told(LogLines):
    """Records the reported steps, and the checkpoint on disk at that time."""

    def __init__(self, one: World) -> None:
        self._folder = one.state
        self._owner = JournalOwner.of(one.coordinator.run, "a")
        self.steps: list[tuple[int, int]] = []
        self.kept: list[tuple[int, int]] = []

    def step(self, report: StepReport) -> None:
        checkpoint = Journal(self._folder, self._owner).checkpoint()
        assert checkpoint is not None
        self.steps.append((report.round, report.step))
        self.kept.append((checkpoint.key.round, len(checkpoint.steps)))


@pytest.mark.parametrize("method", ["fedavg", "pubswap"])
def test_a_step_is_reported_once_it_is_on_the_disk(
    world: Callable[..., World], method: str
) -> None:
    """Every step is reported, in order, while the checkpoint on disk is the step's own."""
    one = world(method=method)
    told = Told(one)
    one.live(told)
    assert told.steps == [(r, s) for r in range(1, ROUNDS + 1) for s in range(1, STEPS + 1)]
    assert told.kept == told.steps


def test_the_next_step_is_sampled_while_a_checkpoint_is_written(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk blocks until then, so a client that waited for it would hang."""
    one = world(method="fedavg")
    write, sampling, passed = files.write_all, threading.Semaphore(0), []
    trainer = one.trainer

    def slow(descriptor: int, data: memoryview) -> None:
        if threading.current_thread() is not threading.main_thread() and not passed:
            assert sampling.acquire(timeout=60) and sampling.acquire(timeout=60)
            passed.append(True)
        write(descriptor, data)

    def watched(*given: Any) -> Any:
        made = trainer(*given)
        generate = made.engine.generate

        def generating(*args: Any, **kwargs: Any) -> Any:
            sampling.release()
            return generate(*args, **kwargs)

        made.engine.generate = generating  # type: ignore[method-assign]
        return made

    monkeypatch.setattr(files, "write_all", slow)
    one.trainer = watched
    one.live()
    assert passed


def test_a_full_disk_ends_a_client_before_the_next_step_is_reported(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the file; reported steps are kept, and the run continues bit for bit."""
    one, undisturbed = world(), world()
    undisturbed.live()
    told, write, full = Told(one), files.write_all, [False]

    def filling(descriptor: int, data: memoryview) -> None:
        full[0] = full[0] or len(told.steps) == 2
        if full[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(descriptor, data)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_all", filling)
        with pytest.raises(NotSaved, match=r"checkpoint\.safetensors could not be saved"):
            one.live(told)
    assert told.steps == told.kept == [(1, 1), (1, 2)]
    one.live(told)
    assert told.steps[2] == (1, 3)
    assert one.adapters() == undisturbed.adapters()

"""A leader and its followers: how signals and exits of one affect the others."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pubswap_client.distributed import launch
from pubswap_client.distributed.launch import (
    die_with_the_leader,
    followers,
    load_policy,
    open_process_group,
)
from pubswap_client.settings import ClientSettings
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.model import ModelCard
from pubswap_protocol.settings import RunSettings
from support.eventually import until


def test_followers_leave_a_signal_to_all_processes_to_the_leader() -> None:
    """A follower that ended at once would end the leader too, while it still saves its step."""
    follower = os.fork()
    if not follower:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        die_with_the_leader()
        for name in (signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), name)
        os._exit(0)
    assert os.waitpid(follower, 0) == (follower, 0)


def test_a_follower_whose_leader_was_killed_while_it_started_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise it would try to connect for a year, and keep its memory."""
    reading, writing = os.pipe()
    leader = os.fork()
    if not leader:

        def start(_: object, env: Mapping[str, str]) -> None:
            killed = os.getpid()
            if os.fork():
                os._exit(0)
            os.environ.update(env)
            while os.getppid() == killed:
                time.sleep(0.01)
            die_with_the_leader()
            os.write(writing, b"alive")

        try:
            monkeypatch.setattr(launch, "subprocess", SimpleNamespace(Popen=start))
            with followers(1):
                pass
        finally:
            os._exit(1)
    os.close(writing)
    assert os.waitpid(leader, 0) == (leader, 0)
    with os.fdopen(reading, "rb") as said:
        assert said.read() == b""


@pytest.mark.parametrize(("code", "statuses"), [(0, []), (3, [70])])
def test_a_follower_that_exits_first_does_not_end_the_leader(
    monkeypatch: pytest.MonkeyPatch, code: int, statuses: list[int]
) -> None:
    """They exit when the leader tells them to, perhaps before it waits for them."""
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, "-c", f"raise SystemExit({code})"])
    before = set(threading.enumerate())
    with followers(1):
        until(lambda: set(threading.enumerate()) <= before)  # until the watching thread has reacted
    assert ended == statuses


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any starts, because those without a GPU would fail with a traceback."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(launch, "followers", lambda _: pytest.fail("followers were started"))
    with (
        pytest.raises(InvalidSettings, match="processes = 3, but torch finds 2 GPUs"),
        open_process_group(ClientSettings(processes=3)),
    ):
        pass


def test_several_processes_are_not_trained_on_a_cpu_where_a_gpu_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error is the same as for one process."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(launch, "followers", lambda _: pytest.fail("followers were started"))
    with (
        pytest.raises(InvalidSettings, match="torch finds no GPU"),
        open_process_group(ClientSettings(device="cuda", processes=2)),
    ):
        pass


def test_a_policy_is_loaded_in_the_member_s_precision(
    tiny_qwen3: Path,
    card_of: Callable[[Path], ModelCard],
    run_settings: RunSettings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log says once if this CPU only emulates it."""
    card, half = card_of(tiny_qwen3), ClientSettings(device="cpu", dtype="bfloat16")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True})
    assert load_policy(half, tiny_qwen3, card, run_settings).dtype == torch.bfloat16
    assert not caplog.messages
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    assert load_policy(half, tiny_qwen3, card, run_settings).dtype == torch.bfloat16
    plain = ClientSettings(device="cpu")
    assert load_policy(plain, tiny_qwen3, card, run_settings).dtype == torch.float32
    assert len(caplog.messages) == 1 and "faster in float32" in caplog.messages[0]

"""`pubswap client personalize` after a real run: trained, killed, resumed, and never sent."""

import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from pubswap_client.demo.demos import MODEL
from pubswap_client.state import history
from pubswap_client.state.history import HeldOutScore
from pubswap_client.state.membership import load_membership
from support.coordinator.processes import (
    ONE_THREAD,
    create_run,
    enroll,
    serve,
    start,
    start_client,
    wait_finished,
)
from support.eventually import until
from support.forked import Forked, ForkedProcesses, pubswap
from support.privacy import namespace

pytestmark = pytest.mark.usefixtures("unmeasured")
HELD_OUT = 4


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The state folder of a run's only client, after the run and its coordinator have ended."""
    folder = tmp_path_factory.mktemp("run")
    config = folder / "client.toml"
    config.write_text(f'holdout = {HELD_OUT}\nmodel = "{MODEL}"\ndevice = "cpu"\n')
    with ForkedProcesses(folder / "logs") as processes:
        coordinator = serve(processes, folder)
        with coordinator.api:
            run = create_run(coordinator, {"clients": 1, "rounds": 1}, count=24)
            state = enroll(coordinator, run, "alpha")
            start_client(coordinator, state, 3, more=["--config", str(config)])
            start(coordinator, run)
            wait_finished(coordinator, run)
            until(lambda: (state / "adapter" / "adapter_model.safetensors").exists())
            until(lambda: len(history.read(state / history.HELD_OUT, run.id, HeldOutScore)) == 2)
    yield state


def line(state: Path, out: Path, *more: str) -> list[str]:
    options = ["--config", str(state.parent / "client.toml"), "--state", str(state)]
    options += ["--data", str(state / "private.jsonl"), "--threads", "1", "--steps", "4"]
    return ["client", "personalize", *options, "--out", str(out), *more]


def ledger_of(state: Path) -> dict[str, bytes]:
    """The ledger's whole content."""
    files = (path for path in (state / "ledger").rglob("*") if path.is_file())
    return {str(path): path.read_bytes() for path in files}


def weights(folder: Path) -> bytes:
    return (folder / "adapter_model.safetensors").read_bytes()


@pytest.mark.full
def test_a_personal_adapter_is_trained_on_top_and_nothing_is_sent(
    member: Path, tmp_path: Path
) -> None:
    """Killed at a step, it ends with the same bits as without, readable by its owner only; PEFT
    loads both as one."""
    log, env = tmp_path / "log", os.environ | ONE_THREAD
    ledger = ledger_of(member)
    killed = Forked(line(member, tmp_path / "personal"), log, env=env)
    kept = member / "personal" / "checkpoint.safetensors"
    until(lambda: kept.exists() or killed.poll() is not None)
    killed.kill()
    killed.wait()
    assert not (tmp_path / "personal").exists()
    done = pubswap(*line(member, tmp_path / "personal"), env=env)
    assert done.returncode == 0, done.stderr
    steps = re.findall(r"step (\d) of 4", done.stderr)
    assert steps == ["1", "2", "3", "4"][-len(steps) :] and len(steps) < 4, done.stderr

    (member / "personal").rename(member / "personal-first")
    undisturbed = tmp_path / "undisturbed"
    if namespace.missing() is None:
        with namespace.network() as network:
            install = ["support.privacy.namespace", network.name]
            again = Forked(line(member, undisturbed), log, env=env, install=install)
            assert again.wait() == 0, log.read_text()
        assert not network.sent  # not even to this machine
    else:
        assert pubswap(*line(member, undisturbed), env=env).returncode == 0
    assert weights(undisturbed) == weights(tmp_path / "personal")
    assert ledger_of(member) == ledger
    assert undisturbed.stat().st_mode & 0o777 == 0o700

    found = re.search(r"on 4 held-out .* shared (\S+), personal (\S+) \(", done.stdout)
    assert found is not None, done.stdout
    run = load_membership(member).membership.run
    [last] = [
        each
        for each in history.read(member / history.HELD_OUT, run, HeldOutScore)
        if each.round == 1
    ]
    assert found[1] == f"{last.pass_at_1:.3f}"
    assert difference(member / "adapter", tmp_path / "personal") > 1e-3

    refused = pubswap(*line(member, tmp_path / "personal"), env=env)
    assert refused.returncode == 1 and "already exists" in refused.stderr


def difference(one: Path, other: Path) -> float:
    """The largest difference between the logits of two adapters, loaded by PEFT."""
    logits = []
    for folder in (one, other):
        base = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = PeftModel.from_pretrained(base, folder)
        with torch.no_grad():
            logits.append(model(torch.tensor([[5, 6, 7, 8, 9]])).logits)
    return float((logits[0] - logits[1]).abs().max())


def test_what_is_missing_is_said_before_anything_is_loaded(tmp_path: Path) -> None:
    """Such as a membership, in one line, with status 1."""
    done = pubswap("client", "personalize", "--state", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 1
    assert "pubswap client enroll" in done.stderr
    assert "Traceback" not in done.stderr

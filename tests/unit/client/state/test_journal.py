"""The progress folder: saved state is restored bit for bit, and anything else is rejected."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pubswap_client.state.journal import (
    Checkpoint,
    Journal,
    JournalOwner,
    PublicStepKey,
    RoundKey,
)
from pubswap_client.state.sealed import seal, unseal
from pubswap_client.training.metrics import StepMetrics
from pubswap_client.training.trainer import Snapshot
from pubswap_protocol.messages import RunView
from pubswap_protocol.model import ModelCard
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.terms import make_terms, with_clients

OWNER = JournalOwner(run="r1", client="a", terms="blake3:" + "1" * 64)
START = "blake3:" + "2" * 64
ROUND = RoundKey(1, START)
STEP = PublicStepKey(ROUND, public_step=1, prompts=[4, 2])
METRICS = StepMetrics(0.1, 1e-9, 0.0, 1 / 3, 0.5, 7.25, 58, 0.123456789, float("inf"))


def test_a_checkpoint_belongs_to_the_terms_that_were_approved(
    tiny_qwen3: Path, card_of: Callable[[Path], ModelCard], run_settings: RunSettings
) -> None:
    """Also if another version reads one more setting in them, whose default changes nothing."""
    card = card_of(tiny_qwen3)
    terms = make_terms(
        "run", run_settings.model_dump(mode="json"), card.model_dump(mode="json"), "1", START
    )
    view = RunView(
        id="r1",
        name="run",
        state="training",
        paused=False,
        round=1,
        settings=run_settings,
        model=card,
        terms=terms,
        created_at="2025-01-01T00:00:00Z",
    )
    newer = view.model_copy(update={"settings": run_settings.model_copy(update={"rounds": 77})})
    other = view.model_copy(update={"terms": with_clients(terms, 77)})
    assert JournalOwner.of(view, "a") == JournalOwner.of(newer, "a") != JournalOwner.of(other, "a")


def checkpoint(steps: int = 2) -> Checkpoint:
    """A round after some steps, with values that are not round numbers."""
    rng = np.random.default_rng(steps)
    factor = rng.normal(size=(3, 5)).astype(np.float32)
    state = {
        "step/layer.lora_A.weight": np.array(steps, dtype=np.float32),
        "exp_avg/layer.lora_A.weight": rng.normal(size=(3, 5)).astype(np.float32),
        # Subnormal numbers.
        "exp_avg_sq/layer.lora_A.weight": np.full((3, 5), np.float32(1e-42)),
    }
    snapshot = Snapshot({"layer.lora_A.weight": factor}, state, resampled=5)
    return Checkpoint(ROUND, (METRICS,) * steps, snapshot)


def same(one: Checkpoint | None, other: Checkpoint) -> bool:
    """Whether two checkpoints agree in every bit."""
    if one is None or (one.key, one.steps) != (other.key, other.steps):
        return False
    if one.snapshot.resampled != other.snapshot.resampled:
        return False
    pairs = [
        (one.snapshot.adapter, other.snapshot.adapter),
        (one.snapshot.optimizer, other.snapshot.optimizer),
    ]
    return all(
        mine.keys() == theirs.keys()
        and all(
            mine[name].tobytes() == theirs[name].tobytes()
            and mine[name].shape == theirs[name].shape
            for name in mine
        )
        for mine, theirs in pairs
    )


def test_a_checkpoint_comes_back_bit_for_bit(tmp_path: Path) -> None:
    """Factors, optimizer state, metrics and position are those saved last."""
    store = Journal(tmp_path / "progress", OWNER)
    assert store.checkpoint() is None
    store.save(checkpoint(1))
    store.save(checkpoint(2))
    assert same(Journal(tmp_path / "progress", OWNER).checkpoint(), checkpoint(2))
    (path,) = (tmp_path / "progress").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_public_step_s_batch_comes_back_until_its_step_is_saved(tmp_path: Path) -> None:
    """Own and received bytes are kept unchanged, and deleted once the step's checkpoint is
    saved.
    """
    store = Journal(tmp_path, OWNER)
    assert (store.sampled(STEP), store.received(STEP)) == (None, None)
    store.save_sampled(STEP, b"ours\0")
    store.save_received(STEP, b"theirs\0")
    again = Journal(tmp_path, OWNER)
    assert again.sampled(STEP) == b"ours\0"
    assert again.received(STEP) == b"theirs\0"
    again.save(checkpoint())
    assert (again.sampled(STEP), again.received(STEP)) == (None, None)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.safetensors"]


@pytest.mark.parametrize(
    "other",
    [
        replace(STEP, key=ROUND._replace(round=2)),
        replace(STEP, key=ROUND._replace(start="blake3:" + "3" * 64)),
        replace(STEP, key=ROUND._replace(rollbacks=1)),
        replace(STEP, public_step=2),
        replace(STEP, prompts=[2, 4]),
    ],
    ids=["round", "start", "rollbacks", "public_step", "prompts"],
)
def test_another_step_s_batch_is_not_taken(tmp_path: Path, other: PublicStepKey) -> None:
    """A file that a crash left behind is ignored and overwritten."""
    store = Journal(tmp_path, OWNER)
    store.save_sampled(STEP, b"old")
    assert store.sampled(other) is None
    store.save_sampled(other, b"new")
    assert store.sampled(other) == b"new"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 16
    path.write_bytes(bytes(data))


def foreign(path: Path) -> None:
    stranger = Journal(path.parent, replace(OWNER, client="b"))
    stranger.save(checkpoint())
    stranger.save_sampled(STEP, b"b's")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (cut, "its digest does not match"),
        (flip, "its digest does not match"),
        (lambda path: path.write_bytes(b""), "its digest does not match"),
        (lambda path: path.write_bytes(b"\xff" * 300), "its digest does not match"),
        (foreign, "it belongs to"),
    ],
    ids=["cut", "flipped", "empty", "no header", "foreign"],
)
@pytest.mark.parametrize("name", ["checkpoint", "exchange-own"])
def test_a_damaged_or_foreign_file_is_set_aside(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[Path], None],
    reason: str,
    name: str,
) -> None:
    """It is renamed, the log says why, and work starts without it."""
    store = Journal(tmp_path, OWNER)
    store.save(checkpoint())
    store.save_sampled(STEP, b"ours")
    path = tmp_path / f"{name}.safetensors"
    damage(path)
    with caplog.at_level(logging.WARNING):
        found = store.checkpoint() if name == "checkpoint" else store.sampled(STEP)
    assert found is None
    assert reason in caplog.text
    assert not path.exists()
    assert path.with_name(path.name + ".damaged").exists()


@pytest.mark.parametrize(
    "other", [{"run": "r2"}, {"terms": "blake3:" + "4" * 64}], ids=["run", "terms"]
)
def test_another_run_s_checkpoint_is_not_taken(tmp_path: Path, other: dict[str, str]) -> None:
    """Nor is this run's checkpoint under other settings."""
    Journal(tmp_path, OWNER).save(checkpoint())
    assert Journal(tmp_path, replace(OWNER, **other)).checkpoint() is None


def test_an_interrupted_write_does_not_touch_the_checkpoint(tmp_path: Path) -> None:
    """A new daemon deletes the partial file and finds the complete one."""
    Journal(tmp_path, OWNER).save(checkpoint())
    (tmp_path / "checkpoint.safetensors.tmp").write_bytes(b"half")
    assert same(Journal(tmp_path, OWNER).checkpoint(), checkpoint())
    assert not (tmp_path / "checkpoint.safetensors.tmp").exists()


def test_another_version_s_checkpoint_is_not_taken(tmp_path: Path) -> None:
    """Its metrics have other fields."""
    Journal(tmp_path, OWNER).save(checkpoint())
    path = tmp_path / "checkpoint.safetensors"
    facts, tensors = unseal(path.read_bytes())
    path.write_bytes(b"".join(seal(facts | {"steps": [{"loss": 1.0}]}, tensors)))
    assert Journal(tmp_path, OWNER).checkpoint() is None
    assert (tmp_path / "checkpoint.safetensors.damaged").exists()

"""The GPU that each process of a sweep sees, and the results that count as done."""

from collections.abc import Generator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.verifiers import verifier_version
from pubswap_simulation.federation import begin_run
from pubswap_simulation.job import RunSpec
from pubswap_simulation.processes import Outcome
from pubswap_simulation.results import RUNS
from pubswap_simulation.sweep import carry_out, visible_devices
from support.client.results import make_result, write_store


def test_processes_are_shared_out_over_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """In turn: each process sees a single GPU, and does not fall back to the CPU if that is
    missing.

    Without devices nothing changes.
    """
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = [
        environment["CUDA_VISIBLE_DEVICES"]
        for environment in visible_devices(3, ["cuda:0", "cuda:1"])
    ]
    assert found == ["0", "1", "0"]
    assert visible_devices(1, ["cuda:3"])[0]["PUBSWAP_CLIENT_DEVICE"] == "cuda"
    on_cpu = {"CUDA_VISIBLE_DEVICES": "", "PUBSWAP_CLIENT_DEVICE": "cpu"}
    assert visible_devices(1, ["cpu"]) == [on_cpu]
    assert visible_devices(2, []) == [{}, {}]


def test_devices_are_counted_among_those_that_are_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Indices count within CUDA_VISIBLE_DEVICES, as in torch; a device outside it is refused."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    assert visible_devices(1, ["cuda:1"])[0]["CUDA_VISIBLE_DEVICES"] == "6"
    with pytest.raises(InvalidSettings, match="allows 4,6"):
        visible_devices(1, ["cuda:2"])


@pytest.mark.parametrize("name", ["gpu0", "cuda:x", "", "0"])
def test_an_invalid_device_is_refused(name: str) -> None:
    """The message shows the valid form."""
    with pytest.raises(InvalidSettings, match="cuda:0,cuda:1"):
        visible_devices(1, [name])


def test_a_result_judged_by_other_rules_is_reported(tmp_path: Path) -> None:
    """The message says what to remove to run it again; it counts as done, because it may have taken
    days.
    """
    result = make_result([0.4, 0.5])
    here = verifier_version(result.run.settings.verifier)
    runs = [result.run.model_copy(update={"verifier_version": one}) for one in (here, "math@0")]
    store = write_store(tmp_path, [result.model_copy(update={"run": run}) for run in runs])
    job: Any = SimpleNamespace(settings=result.run.settings)
    folders = [store / RUNS / f"{place:04d}" for place in range(2)]
    specs = [RunSpec.model_construct(job=job, title="", folder=folder) for folder in folders]
    said = []

    def nothing(specs: Sequence[RunSpec]) -> Generator[Outcome]:
        assert not specs
        yield from ()

    assert carry_out(specs, nothing, lambda spec, outcome: said.append(outcome)) == {}
    other = f"judged by math@0 and not by {here}: remove {folders[1]} to run it again"
    assert said == ["already done", f"already done, {other}"]


def test_a_run_begun_under_other_rules_does_not_continue(tmp_path: Path) -> None:
    """Its rounds would be judged by two versions."""
    job: Any = SimpleNamespace(settings=make_result([0.4, 0.5]).run.settings)
    begun, no_one = tmp_path / "founded", Any
    begun.write_text(f"run-id {verifier_version('math')}")
    assert begin_run(no_one, no_one, job, tmp_path) == "run-id"
    begun.write_text("run-id math@0")
    with pytest.raises(InvalidSettings, match=r"math@0; it is math@\d.* Remove the folder"):
        begin_run(no_one, no_one, job, tmp_path)

"""The notebooks of docs/, run by a real kernel like a reader's."""

import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from pubswap import Coordinator
from pubswap_client.operator.connecting import operator_token
from pubswap_protocol.messages import Role
from support.coordinator.processes import ONE_THREAD, enroll, serve
from support.forked import ForkedProcesses

ROOT = Path(__file__).parents[3]
NOTEBOOKS = ROOT / "docs" / "notebooks"
MODEL = "deploy/recipes/small/model"

pytestmark = pytest.mark.usefixtures("unmeasured")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for the files that notebooks make."""
    (tmp_path / "docs" / "notebooks").mkdir(parents=True)
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    for name, value in {**ONE_THREAD, "HF_HUB_OFFLINE": "1"}.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def outputs(name: str, checkout: Path) -> dict[int, str]:
    """Run all cells; returns each one's output by number, with images as "image/png"."""
    notebook: Any = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    folder = {"metadata": {"path": str(checkout / "docs" / "notebooks")}}
    NotebookClient(notebook, timeout=800, kernel_name="python3", resources=folder).execute()
    return {
        number: "\n".join(_shown(output) for output in cell.get("outputs", ()))
        for number, cell in enumerate(notebook.cells, start=1)
    }


def _shown(output: Any) -> str:
    data = output.get("data", {})
    return output.get("text", "") + data.get("text/plain", "") + " ".join(data)


def test_notebooks_are_kept_without_outputs() -> None:
    """So that their diffs can be reviewed like any other file's."""
    paths = list(NOTEBOOKS.glob("*.ipynb"))
    assert len(paths) == 2
    for path in paths:
        notebook = json.loads(path.read_text())
        nbformat.validate(notebook)
        for cell in notebook["cells"]:
            assert not cell.get("outputs") and cell.get("execution_count") is None, path.name


@pytest.mark.long
@pytest.mark.full
def test_an_operator_looks_at_a_run_while_it_trains(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While real members train; it follows the log to the end, and prompts the adapter."""
    with ForkedProcesses(checkout / "logs") as processes:
        running = serve(processes, checkout)
        token = operator_token(checkout / "c" / "operator-token")
        with running.api, Coordinator(running.api.url, token) as coordinator:
            run = coordinator.create("tour", data=checkout / "split")
            model = ["--model", str(ROOT / MODEL), "--threads", "1"]
            for number, name in enumerate(("hospital-a", "hospital-b"), start=1):
                state = enroll(running, run.show(), name)
                data = checkout / "split" / f"client-{number}.jsonl"
                words = ["client", "start", "--state", str(state), "--data", str(data)]
                processes.start(name, [*words, *model])
            state = enroll(running, run.show(), "judge", Role.EVALUATOR)
            processes.start("judge", ["evaluate", "--state", str(state), *model])
            run.start()
            monkeypatch.setenv("PUBSWAP_COORDINATOR", running.api.url)
            monkeypatch.setenv("PUBSWAP_OPERATOR_TOKEN", token)
            shown = outputs("operator", checkout)
            assert run.state == "finished"
    assert f"Run('tour', '{run.id}')" in shown[2]
    assert "tour is" in shown[3]
    assert "hospital-b" in shown[5] and "text/html" in shown[5]
    assert "started" in shown[7] and shown[7].count("aggregated") == 2
    assert "pass@1" in shown[9] and "image/png" in shown[10]
    assert "problem: 12 + 30 =" in shown[12]
    assert token not in json.dumps(shown)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_researcher_simulates_a_federation_in_a_cell(checkout: Path) -> None:
    """With a progress bar, figures, a second method, and the adapter's folder."""
    shown = outputs("researcher", checkout)
    assert "tour:" in shown[2] and "6/6" in shown[2] and "pass@1" in shown[2]
    assert "Federation('tour', pass@1 0." in shown[2]
    assert "drift_pairwise" in shown[4]
    assert "image/png" in shown[6]
    assert "fedavg" in shown[8]
    (path,) = re.findall(r"PosixPath\('(.+)'\)", shown[10])
    assert Path(path).is_relative_to(checkout)
    assert (Path(path) / "adapter_model.safetensors").stat().st_size > 0

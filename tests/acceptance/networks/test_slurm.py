"""deploy/slurm with a fake Slurm: jobs that requeue themselves."""

import json
import re
import signal
import time
import tomllib
from pathlib import Path

import pytest

from pubswap_client.demo.demos import MODEL
from support.client.shims import pubswap_on_path
from support.coordinator.processes import (
    ONE_THREAD,
    client_command,
    create_run,
    enroll,
    federated_adapter,
    serve,
    start,
    wait_finished,
)
from support.eventually import until
from support.forked import Forked, ForkedProcesses
from support.networks.fake_slurm import Slurm

ROOT = Path(__file__).parents[3]
SLURM = ROOT / "deploy" / "slurm"

RECORDER = """#!/usr/bin/env python3
import json, os, sys, time
names = ("CUDA_VISIBLE_DEVICES", "PUBSWAP_CLIENT_PROCESSES", "PUBSWAP_CLIENT_ENGINE",
         "PUBSWAP_CLIENT_VLLM__URLS", "PUBSWAP_CLIENT_VLLM__ADAPTER_DIR")
with open({out!r}, "a") as file:
    env = {{name: os.environ.get(name) for name in names}}
    file.write(json.dumps([os.path.basename(sys.argv[0]), os.getpid(), sys.argv[1:], env]) + "\\n")
if sys.argv[1] == "serve":
    time.sleep(600)
while env["PUBSWAP_CLIENT_VLLM__URLS"]:  # until vLLM is there, which the end of the job ends
    with open({out!r}) as file:
        if '"serve"' in file.read():
            break
    time.sleep(0.02)
with open({statuses!r}) as file:
    left = file.read().split()
with open({statuses!r}, "w") as file:
    file.write(" ".join(left[1:]))
sys.exit(int(left[0]))
"""


def recorded(folder: Path, slurm: Slurm, statuses: str) -> Path:
    """Put programs on the job's path that record their calls and exit with this status."""
    out, left = folder / "called", folder / "statuses"
    left.write_text(statuses)
    for name in ("pubswap", "vllm"):
        program = slurm.programs / name
        program.write_text(RECORDER.format(out=str(out), statuses=str(left)))
        program.chmod(0o755)
    return out


@pytest.mark.parametrize(("statuses", "starts"), [("75 75 0", 3), ("3", 1), ("1", 1), ("130", 1)])
def test_a_job_comes_again_as_its_status_says(statuses: str, starts: int, tmp_path: Path) -> None:
    """Only after 75; each daemon gets the time that the job's limit leaves."""
    slurm = Slurm(tmp_path / "slurm", {"margin": "60"}, lambda start: 3600 if start else None)
    with slurm.running():
        called = recorded(tmp_path, slurm, statuses)
        slurm.submit(SLURM / "pubswap.sbatch")
        until(lambda: not (slurm.folder / "queued").exists())
        assert slurm.statuses == [int(each) for each in statuses.split()]
    calls = [json.loads(line) for line in called.read_text().splitlines()]
    assert len(calls) == starts
    assert calls[0][2] == ["client", "start"]
    for _, _, arguments, _ in calls[1:]:
        assert arguments[:3] == ["client", "start", "--until"]
        assert 3500 <= int(arguments[3].removesuffix("s")) <= 3540


@pytest.mark.parametrize(
    ("failure", "failures", "told"),
    [
        ("exit 1", 2, True),
        ("exit 0", 2, True),
        ("exit 1", 100, False),
        ("exit 0", 100, False),
    ],
    ids=["fails", "says nothing", "always fails", "never says anything"],
)
def test_a_scheduler_that_does_not_answer_is_asked_again(
    failure: str, failures: int, told: bool, tmp_path: Path
) -> None:
    """And a job whose end is unknown starts anyway."""
    slurm = Slurm(tmp_path / "slurm", {"margin": "60"}, lambda start: 3600)
    with slurm.running():
        called = recorded(tmp_path, slurm, "75 0")
        for name in ("squeue", "scontrol"):
            program, left = slurm.programs / name, tmp_path / f"{name}-fails"
            left.write_text("x\n" * (failures if name == "squeue" else 2))
            fail = f"[ -s {left} ] && sed -i 1d {left} && "
            fail += failure if name == "squeue" else "exit 1"
            program.write_text(program.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n{fail}\n"))
        (slurm.programs / "sleep").symlink_to("/bin/true")
        slurm.submit(SLURM / "pubswap.sbatch")
        until(lambda: slurm.statuses == [75, 0])
    calls = [json.loads(line)[2] for line in called.read_text().splitlines()]
    if not told:
        assert calls == [["client", "start"]] * 2
    else:
        assert [call[:-1] for call in calls] == [["client", "start", "--until"]] * 2
        assert all(3000 <= int(call[-1].removesuffix("s")) <= 3540 for call in calls)


def test_a_margin_that_leaves_no_time_ends_the_job_and_says_so(tmp_path: Path) -> None:
    """A daemon without a time would be killed at the limit, and its job would not be requeued."""
    slurm = Slurm(tmp_path / "slurm", {"margin": "60"}, lambda start: 30)
    with slurm.running():
        called = recorded(tmp_path, slurm, "0")
        slurm.submit(SLURM / "pubswap.sbatch")
        until(lambda: slurm.statuses == [1])
    assert not called.exists()
    assert "The margin of 60 s leaves no time" in (slurm.folder / "log").read_text()


def test_vllm_has_a_gpu_of_the_jobs_own(tmp_path: Path) -> None:
    """The other GPUs train; at the end the server is gone, and so are its adapters."""
    env = {
        "CUDA_VISIBLE_DEVICES": "4,5,6",
        "vllm_options": "--dtype bfloat16 --max-model-len 64",
        "PUBSWAP_CLIENT_MODEL": "/models/it",
    }
    slurm = Slurm(tmp_path / "slurm", env, lambda start: 3600)
    with slurm.running():
        called = recorded(tmp_path, slurm, "0")
        slurm.submit(SLURM / "pubswap.sbatch")
        until(lambda: slurm.statuses == [0])
        calls = [json.loads(line) for line in called.read_text().splitlines()]
        served, trains = sorted(calls, key=lambda call: str(call[0]), reverse=True)
        until(lambda: not Path(f"/proc/{served[1]}").exists())
    begin = ["serve", "/models/it", "--dtype", "bfloat16", "--max-model-len", "64"]
    assert served[2] == [*begin, "--host", "127.0.0.1", "--port", "20007"]
    assert served[3]["CUDA_VISIBLE_DEVICES"] == "6"
    assert trains[3]["CUDA_VISIBLE_DEVICES"] == "4,5"
    assert trains[3]["PUBSWAP_CLIENT_PROCESSES"] == "2"
    assert trains[3]["PUBSWAP_CLIENT_ENGINE"] == "vllm-server"
    assert json.loads(trains[3]["PUBSWAP_CLIENT_VLLM__URLS"]) == ["http://127.0.0.1:20007"]
    assert not Path(trains[3]["PUBSWAP_CLIENT_VLLM__ADAPTER_DIR"]).exists()


def test_vllm_without_a_model_ends_the_job_at_once(tmp_path: Path) -> None:
    """Otherwise the daemon would wait for a server that never starts."""
    slurm = Slurm(tmp_path / "slurm", {"vllm_options": "--dtype bfloat16"}, lambda start: 3600)
    with slurm.running():
        called = recorded(tmp_path, slurm, "0")
        slurm.submit(SLURM / "pubswap.sbatch")
        until(lambda: len(slurm.statuses) == 1)
    assert slurm.statuses != [0]
    assert not called.exists()


def test_the_container_names_what_there_is() -> None:
    """It names files, extras and versions of the project that exist."""
    text = (SLURM / "pubswap.def").read_text()
    copied = re.search(r"^%files\n(.*?)^\n", text, re.MULTILINE | re.DOTALL)
    assert copied is not None
    sources = [line.split()[0] for line in copied[1].splitlines()]
    assert len(sources) == 9
    assert all((ROOT / source).exists() for source in sources)
    with (ROOT / "pyproject.toml").open("rb") as file:
        known = tomllib.load(file)["project"]["optional-dependencies"].keys()
    assert {
        each for found in re.findall(r"EXTRAS=(\S+)", text) for each in found.split(",")
    } <= known
    image = (ROOT / "deploy/client.Dockerfile").read_text()
    assert re.findall(r"PINNED='(.*?)'", text) == re.findall(r"PINNED='(.*?)'", image)


STEPS = 10


@pytest.mark.long
@pytest.mark.full
@pytest.mark.usefixtures("unmeasured")
def test_a_run_of_several_jobs(tmp_path: Path) -> None:
    """In a run longer than a job, jobs that end in time and a dead node give the same bits."""
    overrides = {"clients": 1, "rounds": 1, "local_steps": STEPS}
    _, undisturbed = federated_adapter(tmp_path / "undisturbed", overrides, ("alpha",))
    folder = tmp_path / "jobs"
    folder.mkdir()
    with ForkedProcesses(folder / "logs") as processes:
        coordinator = serve(processes, folder)
        run = create_run(coordinator, overrides)
        state = enroll(coordinator, run, "alpha")
        client_command(state, 3)  # writes the private problems
        start(coordinator, run)
        env = ONE_THREAD | {
            "margin": "1",
            "PUBSWAP_CLIENT_STATE": str(state),
            "PUBSWAP_CLIENT_DATA": str(state / "private.jsonl"),
            "PUBSWAP_CLIENT_MODEL": str(MODEL),
            "PUBSWAP_CLIENT_THREADS": "1",
        }
        slurm = Slurm(tmp_path / "slurm", env, lambda start: 3 if start == 2 else None)
        daemons: list[Forked] = []

        def pubswap(arguments: list[str], cwd: str, env: dict[str, str]) -> tuple[int, str, str]:
            out = folder / f"{len(daemons)}.log"
            daemons.append(Forked(arguments, out, env=env, cwd=Path(cwd)))
            return daemons[-1].wait(), "", out.read_text()

        def made() -> int:
            """The number of steps made by the running daemon and earlier ones."""
            said = (folder / f"{len(daemons) - 1}.log").read_text() if daemons else ""
            return max(map(int, re.findall(rf" step=(\d+) steps={STEPS}", said)), default=0)

        def alarm() -> None:
            """Stop the daemon once a step is saved, as a deadline would."""
            daemons[-1].send_signal(signal.SIGALRM)
            daemons[-1].wait(30)

        def nothing() -> None:
            """Do nothing: it ends by itself at --until or when the run is finished."""

        with coordinator.api, slurm.running(), pubswap_on_path(slurm.programs, pubswap):
            try:
                slurm.submit(SLURM / "pubswap.sbatch")
                for ended, ending in enumerate((slurm.kill_node, alarm, nothing, nothing)):
                    while len(slurm.statuses) == ended:
                        if ending is not nothing and made() >= 3 * ended + 2:
                            ending()
                            daemons[-1].kill()
                        time.sleep(0.05)
            finally:
                for daemon in daemons:
                    daemon.kill()
            log = (slurm.folder / "log").read_text()
            assert slurm.statuses == [-signal.SIGKILL, 75, 75, 0], log
            assert min(map(int, re.findall(r"continues after step (\d+)", log))) >= 2, log
            wait_finished(coordinator, run)
            assert coordinator.api.global_adapter(run.id, "final") == undisturbed

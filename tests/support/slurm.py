"""A fake Slurm with the commands that submitit calls; each task of an array is a local process.

A task killed by a signal stands for one whose node has died: with --requeue it is started again.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

COMMANDS = ("sbatch", "srun", "sacct", "scancel", "scontrol")
STATE = "FAKE_SLURM"


def install(folder: Path) -> dict[str, str]:
    """Put the commands into a folder; returns the environment that finds them there."""
    programs, state = folder / "bin", folder / "state"
    programs.mkdir()
    state.mkdir()
    for name in COMMANDS:
        program = programs / name
        line = shlex.join([sys.executable, "-I", str(Path(__file__).resolve()), name])
        program.write_text(f'#!/bin/sh\nexec {line} "$@"\n')
        program.chmod(0o755)
    return {"PATH": f"{programs}:{os.environ['PATH']}", STATE: str(state)}


def options(folder: Path) -> dict[str, str]:
    """The long options that the only job was submitted with."""
    [script] = (folder / "state").glob("*.sh")
    return dict(re.findall(r"^#SBATCH --([a-z-]+)=?(.*)$", script.read_text(), re.MULTILINE))


def starts(folder: Path) -> dict[str, int]:
    """How often each task was started."""
    return {
        path.stem: len(path.read_text().splitlines())
        for path in (folder / "state").glob("*.starts")
    }


def states(folder: Path) -> set[str]:
    """The states of all tasks."""
    return {path.read_text() for path in (folder / "state").glob("*.state")}


def die(folder: Path, name: str) -> None:
    """Kill a task as if its node had died."""
    _kill(folder / "state", name)


def out_of_time(folder: Path, name: str) -> None:
    """Tell a task that its time is nearly over, as with --signal."""
    pid = int((folder / "state" / f"{name}.pid").read_text())
    os.kill(pid, signal.SIGUSR2)


def sbatch(script: str) -> None:
    job = str(1000 + os.getpid())
    copy = _state() / f"{job}.sh"
    copy.write_text(Path(script).read_text())
    array = re.search(r"--array=0-(\d+)", copy.read_text())
    for index in range(int(array[1]) + 1) if array else [-1]:
        name = f"{job}_{index}" if array else job
        (_state() / f"{name}.state").write_text("RUNNING")
        keeper = [sys.executable, "-I", __file__, "keep", name]
        silent: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.Popen(keeper, start_new_session=True, **silent)
    sys.stdout.write(f"Submitted batch job {job}\n")


def keep(name: str) -> None:
    """Run a task, and run it again whenever its node dies or it is requeued."""
    job, _, index = name.partition("_")
    script = _state() / f"{job}.sh"
    env = os.environ | {"SLURM_JOB_ID": job, "SLURM_PROCID": "0", "FAKE_SLURM_TASK": name}
    if index:
        env |= {"SLURM_ARRAY_JOB_ID": job, "SLURM_ARRAY_TASK_ID": index}
    while True:
        (requeued := _state() / f"{name}.requeued").unlink(missing_ok=True)
        process = subprocess.Popen(["bash", str(script)], env=env, start_new_session=True)
        with (_state() / f"{name}.starts").open("a") as file:
            file.write(f"{process.pid}\n")
        status = process.wait()
        cancelled = (_state() / f"{name}.cancelled").exists()
        died = status < 0 and "--requeue" in script.read_text()
        if cancelled or not (died or requeued.exists()):
            break
    state = "CANCELLED" if cancelled else "FAILED" if status else "COMPLETED"
    (_state() / f"{name}.state").write_text(state)


def srun(*arguments: str) -> None:
    rest = list(arguments)
    variables = {"%j": "SLURM_JOB_ID", "%A": "SLURM_ARRAY_JOB_ID", "%a": "SLURM_ARRAY_TASK_ID"}
    while rest[0].startswith("--"):
        option = rest.pop(0)
        if option in ("--output", "--error"):
            path = rest.pop(0).replace("%t", "0")
            for placeholder, variable in variables.items():
                path = path.replace(placeholder, os.environ.get(variable, ""))
            opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(opened, 1 if option == "--output" else 2)
    (_state() / f"{os.environ['FAKE_SLURM_TASK']}.pid").write_text(str(os.getpid()))
    os.execvp(rest[0], rest)


def sacct(*arguments: str) -> None:
    sys.stdout.write("JobID|State|NodeList\n")
    for path in _state().glob("*.state"):
        sys.stdout.write(f"{path.stem}|{path.read_text()}|here\n")


def scancel(name: str) -> None:
    (_state() / f"{name}.cancelled").touch()
    _kill(_state(), name)


def scontrol(action: str, name: str) -> None:
    assert action == "requeue"
    (_state() / f"{name}.requeued").touch()


def _kill(state: Path, name: str) -> None:
    os.killpg(int((state / f"{name}.starts").read_text().splitlines()[-1]), signal.SIGKILL)


def _state() -> Path:
    return Path(os.environ[STATE])


if __name__ == "__main__":
    command: Callable[..., None] = globals()[sys.argv[1]]
    command(*sys.argv[2:])

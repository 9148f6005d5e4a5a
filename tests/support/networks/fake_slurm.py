"""A fake Slurm: one job at a time, and the commands that a job's script calls."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

PROGRAMS = {
    "sbatch": 'cp "$1" {folder}/queued.tmp && mv {folder}/queued.tmp {folder}/queued\n'
    "echo Submitted batch job 7",
    # Prints what `squeue --noheader --job 7 --format %e` would.
    "squeue": '[ "$*" = "--noheader --job 7 --format %e" ] && cat {folder}/end',
    "scontrol": '[ "$*" = "requeue 7" ] && touch {folder}/requeued',
}


class Slurm:
    """`seconds(n)` is the time limit of the job's n-th start, from 0; None is no limit."""

    def __init__(
        self, folder: Path, env: Mapping[str, str], seconds: Callable[[int], float | None]
    ) -> None:
        self.folder = folder
        self.programs = folder / "bin"
        self.statuses: list[int] = []
        self.killed = False  # whether the node died, which the job cannot know
        self._env, self._seconds = env, seconds
        self._job: subprocess.Popen[bytes] | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._schedule)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Install the programs, and run submitted jobs."""
        self.programs.mkdir(parents=True)
        for name, text in PROGRAMS.items():
            (self.programs / name).write_text(f"#!/bin/sh\n{text.format(folder=self.folder)}\n")
            (self.programs / name).chmod(0o755)
        self._thread.start()
        try:
            yield
        finally:
            self._over.set()
            self.kill_node()
            self._thread.join(20)

    @property
    def env(self) -> dict[str, str]:
        """The environment with the programs on its path."""
        path = f"{self.programs}{os.pathsep}{os.environ['PATH']}"
        return os.environ | dict(self._env) | {"PATH": path}

    def kill_node(self) -> None:
        """Kill all processes of the job at once; Slurm then restarts it elsewhere."""
        if self._job is not None and self._job.poll() is None:
            self.killed = True
            with suppress(ProcessLookupError):
                os.killpg(self._job.pid, signal.SIGKILL)

    def _schedule(self) -> None:
        queued, requeued = self.folder / "queued", self.folder / "requeued"
        while not self._over.is_set():
            time.sleep(0.05)
            if queued.exists():
                self.killed = False
                self._run(queued)
                if not requeued.exists() and not self.killed:
                    queued.unlink()
                requeued.unlink(missing_ok=True)

    def _run(self, script: Path) -> None:
        seconds = self._seconds(len(self.statuses))
        end = (
            "N/A"
            if seconds is None
            else time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + seconds))
        )
        (self.folder / "end").write_text(f"{end}\n")
        with (self.folder / "log").open("ab") as log:
            self._job = subprocess.Popen(
                ["bash", str(script)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.env | {"SLURM_JOB_ID": "7"},
                start_new_session=True,
            )
            self.statuses.append(self._job.wait())

    def submit(self, script: Path) -> None:
        """Submit a job as a user would."""
        subprocess.run(["sbatch", script], check=True, env=self.env, capture_output=True)

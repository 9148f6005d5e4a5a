"""A process that has imported one side once, and forks a child for each life of it.

A daemon's imports take seconds, and a test that kills it a hundred times starts it as often. A
child runs the same console entry as `pubswap` does.
"""

import faulthandler
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

CLIENT = (
    "support.chaos.points",
    "pubswap_client.daemon.session",
    "peft.utils.transformers_weight_conversion",
    "transformers.models.qwen3.modeling_qwen3",
)
SERVER = (
    "support.chaos.server_points",
    "pubswap_server.app",
    *("uvicorn.lifespan.on", "uvicorn.loops.uvloop", "uvicorn.protocols.http.httptools_impl"),
)
LIFE_SECONDS = 240.0  # seconds are enough; the rest is for a machine that is short of memory


class Zygote:
    """The test's end: start lives, one after another. They all end when the block does."""

    def __init__(
        self, log: Path, modules: Sequence[str] = CLIENT, env: Mapping[str, str] = {}
    ) -> None:
        """The lives' output is appended to `log`.

        The first of the modules has `install(trace, last)`, which puts points into a life.
        """
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "support.chaos.zygote", str(log), *modules],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env=_environment() | dict(env),
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def live(
        self,
        arguments: Sequence[str],
        trace: Path,
        last: str | None = None,
        env: Mapping[str, str] = {},
    ) -> int:
        """Run `pubswap arguments...` to its end or to the point `last`; returns its status.

        The status is negative for a signal's number. Fails, with the log's end, after some minutes.
        """
        self.begin(arguments, trace, last, env)
        return self.end()

    def begin(
        self,
        arguments: Sequence[str],
        trace: Path,
        last: str | None = None,
        env: Mapping[str, str] = {},
    ) -> int:
        """Start a life as `live` does; returns its process id at once."""
        order = {"arguments": list(arguments), "trace": str(trace), "last": last, "env": dict(env)}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        self._last = last
        return self._answer(LIFE_SECONDS)

    def end(self, seconds: float = LIFE_SECONDS) -> int:
        """Wait for the end of the life that was begun; returns its status as `live` does."""
        return self._answer(seconds)

    def ended(self, seconds: float) -> bool:
        """Whether the life ends within this time; then `end` returns at once."""
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], seconds)[0])

    def _answer(self, seconds: float) -> int:
        deadline = time.monotonic() + seconds
        while not self.ended(1.0):
            assert time.monotonic() < deadline, f"alive, before {self._last!r}:\n{self._tail()}"
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        assert answer, f"the zygote is gone:\n{self._tail()}"
        return int(answer)

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-40:])


def _environment() -> dict[str, str]:
    """This process's, with the tests' folder to import from and without coverage.

    Coverage's file is broken by a process that is killed while it writes it.
    """
    path = [str(Path(__file__).parents[2]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    kept = {key: value for key, value in os.environ.items() if not key.startswith("COV")}
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, path)), "OMP_NUM_THREADS": "1"}


def main(log: Path, modules: Sequence[str]) -> None:
    """The zygote's end: one fork for each line on stdin, its id and exit status to stdout."""
    points, *_ = [importlib.import_module(module) for module in modules]
    for line in iter(sys.stdin.readline, ""):
        child = os.fork()
        if not child:
            _live(log, points.install, **json.loads(line))
        _say(child)
        _, status = os.waitpid(child, 0)
        _say(os.waitstatus_to_exitcode(status))


def _say(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def _live(
    log: Path,
    install: Callable[[Path, str | None], None],
    arguments: list[str],
    trace: str,
    last: str | None,
    env: dict[str, str],
) -> None:
    """A life: never returns."""
    from pubswap_protocol.cli import main as pubswap

    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    for descriptor, place in ((os.open(os.devnull, os.O_RDONLY), 0), (output, 1), (output, 2)):
        os.dup2(descriptor, place)
    faulthandler.dump_traceback_later(LIFE_SECONDS / 2, repeat=True)
    os.environ.update(env)
    install(Path(trace), last)
    sys.argv = ["pubswap", *arguments]
    status = 1
    try:
        pubswap()
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(bool(error.code))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

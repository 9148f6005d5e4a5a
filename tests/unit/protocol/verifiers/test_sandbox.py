"""What a scorer can do outside its process: nothing. Threads and scratch files it may have."""

import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pubswap_protocol.errors import InvalidSettings, VerifierFault
from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers import VerifierPool
from pubswap_protocol.verifiers.confined import sandbox, scratch, worker
from pubswap_protocol.verifiers.confined.sandbox import Sandbox, available, check_sandbox
from pubswap_protocol.verifiers.plugin import Plugin
from support.verifiers.escapes import ATTEMPTS, answering, escaping, gone, gone_at_once

ALLOWED = ("start a thread", "write in the scratch folder", "import a module")
PROBLEM = Problem(id="1", prompt="?", answer="4")
confined = pytest.mark.skipif(
    available().lacking is not None, reason=f"this machine has no {available().lacking}"
)


class Outside:
    """What an escape would change, and listeners that it would reach."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.secret = folder / "secret"
        self.secret.write_text("42")
        self.tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = self.tcp.getsockname()[1]
        self.udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self.udp.bind(("127.0.0.1", port))
        self.unix = stack.enter_context(socket.socket(socket.AF_UNIX))
        self.unix.bind(str(folder / "socket"))
        self.unix.listen()
        for listener in (self.tcp, self.udp, self.unix):
            listener.setblocking(False)
        self.signals: list[int] = []
        self.metadata: dict[str, Any] = {
            "file": str(self.secret),
            "folder": str(folder),
            "new": str(folder / "new"),
            "unix": str(folder / "socket"),
            "port": str(port),
            "pid": str(os.getpid()),
            "secret": "PUBSWAP_TEST_TOKEN",
        }

    def state(self) -> tuple[Any, ...]:
        found = self.secret.stat()
        return (
            *(sorted(path.name for path in self.folder.iterdir()), self.secret.read_text()),
            *(found.st_mode, found.st_mtime_ns, found.st_nlink),
            *(resource.getrlimit(resource.RLIMIT_NOFILE), tuple(self.signals)),
        )

    def nobody_came(self) -> bool:
        for listener in (self.tcp, self.udp, self.unix):
            try:
                if listener is self.udp:
                    listener.recv(1)
                else:
                    listener.accept()[0].close()
            except BlockingIOError:
                continue
            return False
        return True


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Outside]:
    with ExitStack() as stack:
        made = Outside(tmp_path, stack)
        monkeypatch.setenv("PUBSWAP_TEST_TOKEN", "secret")
        before = signal.signal(signal.SIGUSR1, lambda number, _: made.signals.append(number))
        yield made
        signal.signal(signal.SIGUSR1, before)


@confined
def test_nothing_gets_out(outside: Outside) -> None:
    """Files, networks, processes, signals, limits and others' environment are out of reach."""
    problem = PROBLEM.model_copy(update={"metadata": outside.metadata})
    before = outside.state()
    with VerifierPool(scorer=escaping) as pool:
        found = {what: pool.score("math", (what, problem)).score for what in ATTEMPTS}
    assert found == {what: 1.0 if what in ALLOWED else 0.5 for what in ATTEMPTS}
    assert outside.state() == before
    assert outside.nobody_came()


@confined
def test_without_a_sandbox_the_attempts_would_succeed(outside: Outside) -> None:
    """So the test above finds what it looks for."""
    problem = PROBLEM.model_copy(update={"metadata": outside.metadata})
    tried = ("read a file", "write beside a file", "connect", "kill the parent", "say the secret")
    scores = [escaping(None, what, problem) for what in tried]  # type: ignore[arg-type]
    assert scores == [1.0] * len(tried)
    assert outside.signals and not outside.nobody_came()


@pytest.mark.parametrize("message", ["half", "forged", "code"])
def test_what_a_scorer_sends_by_itself_is_no_answer(
    message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a message holds nobody up, no answer counts in advance, and nothing is run."""
    monkeypatch.setattr(worker, "_READ_SECONDS", 0.5)
    with VerifierPool(seconds=0.2, scorer=answering) as pool:
        scored = pool.score("math", (message, PROBLEM))
        assert (scored.score, scored.cut_off) == (0.0, True)
        assert pool.score("math", ("", PROBLEM)).score == 0.0


def test_the_scratch_folder_goes_with_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a scorer has written there."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with VerifierPool(scorer=escaping) as pool:
        assert pool.score("math", ("write in the scratch folder", PROBLEM)).score == 1.0
        (folder,) = tmp_path.iterdir()
        assert list(folder.iterdir())
    assert not list(tmp_path.iterdir())


def test_what_a_killed_owner_left_goes_when_the_next_one_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folders of living processes stay, and so do other files."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    dead = subprocess.Popen(["true"])
    dead.wait()
    for name in (f"pubswap-verifier-{dead.pid}-x", "pubswap-verifier-1-x", "pubswap-verifier-y"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("left")
    made = scratch.make()
    assert made.name.startswith(f"pubswap-verifier-{os.getpid()}-")
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {made.name, "pubswap-verifier-1-x", "pubswap-verifier-y"}


def test_a_process_whose_files_are_too_large_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All together; what it scored counts, and the next one has an empty folder."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(worker, "SCRATCH_BYTES", 4)
    with VerifierPool(scorer=escaping) as pool:
        for _ in range(2):
            assert pool.score("math", ("write in the scratch folder", PROBLEM)).score == 1.0
            assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("scorer", [gone, gone_at_once])
def test_a_process_that_dies_before_its_first_response_is_a_fault_of_the_machine(
    scorer: Any,
) -> None:
    """Not of a response: nothing is scored 0."""
    with VerifierPool(scorer=scorer) as pool, pytest.raises(VerifierFault, match="nothing was"):
        pool.score_many("math", [("4", PROBLEM)])


def test_a_script_without_a_main_guard_says_so_once(tmp_path: Path) -> None:
    """Its processes run it again, and die of it."""
    script = tmp_path / "script.py"
    script.write_text(
        "from pubswap_protocol.problems import Problem\n"
        "from pubswap_protocol.verifiers import VerifierPool\n"
        "with VerifierPool() as pool:\n"
        "    items = [('4', Problem(id='1', prompt='?', answer='4'))] * 50\n"
        "    print(pool.score_many('math', items))\n"
    )
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and not done.stdout
    assert 'call this under `if __name__ == "__main__":`' in done.stderr.splitlines()[-1]
    assert done.stderr.count("Traceback") < 5


@pytest.mark.parametrize(
    ("found", "lacks"),
    [
        (Sandbox(0, True), "no Landlock"),
        (Sandbox(3, False), "no seccomp"),
        (Sandbox(0, False), "no Landlock (Linux 5.13 or later) and seccomp"),
    ],
)
def test_where_the_sandbox_is_not_whole_only_our_own_verifiers_run(
    found: Sandbox, lacks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless a policy allows the others."""
    monkeypatch.setattr(sandbox, "available", lambda: found)
    with pytest.raises(InvalidSettings) as refused:
        check_sandbox()
    assert lacks in refused.value.detail and "unconfined_verifiers" in refused.value.detail
    with VerifierPool() as pool:
        assert pool.score("math", ("4", PROBLEM)).score == 1.0
        monkeypatch.setattr(Plugin, "check", lambda _: None)
        with pytest.raises(InvalidSettings, match="would not be confined"):
            pool.score("plugin:complaints", ("4", PROBLEM))
    with (
        VerifierPool(unconfined=True) as pool,
        pytest.raises(InvalidSettings, match="not installed"),
    ):
        pool.score("plugin:complaints", ("4", PROBLEM))

"""The commands of the guides, run exactly as written."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from pubswap_client.coordinator.client import CoordinatorClient, wait_until_ready
from pubswap_client.coordinator.retry import Backoff
from pubswap_client.demo.processes import free_port
from support.client.shims import pubswap_on_path
from support.eventually import until
from support.forked import Forked

ROOT = Path(__file__).parents[2]
MODEL = "deploy/recipes/small/model"
_LONGEST = 1200  # seconds: of the coordinator, which runs through all pages
BLOCK = re.compile(r"^(?:<!-- (.+?): (.+?) -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# The reasons for not running a block, given before it in the page's source.
EXCEPTIONS = {
    "it installs",
    "it needs a GPU",
    "it needs the Hugging Face hub",
    "it needs systemd",
    "it needs Docker",
    "it needs PostgreSQL and a bucket",
    "it is running already",
}
# The pages in the order they are run, all in one folder and with one coordinator; and what their
# readers have that the test must supply, such as an operator or problems of their own.
PAGES = {
    "operator": """
        for N in $(seq 40)
        do echo '{"id": "'$N'", "prompt": "'$N' + 1 =", "answer": "'$((N + 1))'"}'
        done | tee public.jsonl > test.jsonl
        """,
    "recipes": "",
    "your-task": "",
    "data": f"cp {MODEL}/../problems.jsonl mine.jsonl",
    "verifiers": "",
    "organisation": """
        pubswap run create tour --data alone --set name=hospitals --set clients=1 --set rounds=2
        pubswap invite hospitals hospital-a --quiet > code
        cp alone/client-1.jsonl private.jsonl
        until pubswap run start hospitals; do sleep 1; done &
        """,
    "engines": "export SLURM_GPUS_ON_NODE=1",
    "research": "",
    "production": "",
    "demo": "",
    "speed": "",
    "README": "",
}
# Replacements for placeholders in a page; a sweep is halved, because its processes start slowly.
READERS = {
    "--invite CODE": "--invite $(cat code)",
    "https://pubswap.example.org": "http://127.0.0.1:8470",
    "Qwen/Qwen3-1.7B": MODEL,
    "HuggingFaceTB/SmolLM2-135M-Instruct": MODEL,
    'system_prompt = "You sort the complaints of a bank."': 'chat_template = "none"',
    'system_prompt = "You answer with SQL."': "",
    "method=pubswap,fedavg": "method=fedavg",
}


def blocks(page: str) -> Iterator[tuple[str, str, str, str]]:
    """Each fenced block: the text before it, its purpose, its language, and its content."""
    path = ROOT / f"{page}.md" if page == "README" else ROOT / "docs" / f"{page}.md"
    for found in BLOCK.finditer(path.read_text(encoding="utf-8")):
        yield found[1] or "", found[2] or "", found[3], found[4]


def script(page: str) -> str:
    """The page as a script of its commands and the files it names."""
    lines = [PAGES[page]]
    for kind, what, language, text in blocks(page):
        if kind == "file":
            lines.append(f"cat > {what} <<'END'\n{text}END")
        elif language == "sh" and kind != "not run":
            lines.append(text)
    written = "\n".join(lines)
    for place, value in READERS.items():
        written = written.replace(place, value)
    return written


class Commands:
    """The scripts' `pubswap …`, forked from a process that has done the imports."""

    def __init__(self, folder: Path, url: str) -> None:
        self.logs, self.url = folder / "logs", url
        self.ended: list[tuple[str, int]] = []
        self.running: list[Forked] = []
        self.serving = Event()

    def run(self, arguments: list[str], folder: str, env: dict[str, str]) -> tuple[int, str, str]:
        """Run a command; returns its status and output."""
        out = self.logs / f"{len(self.ended)}-{id(env)}.out"
        if arguments[0] == "serve":
            self.serving.set()
        elif self.serving.is_set():
            with CoordinatorClient(self.url, backoff=Backoff(tries=1)) as probe:
                wait_until_ready(probe, 60)
        forked = Forked(arguments, out, out.with_suffix(".err"), env, Path(folder))
        self.running.append(forked)
        status = forked.wait(_LONGEST)
        self.running.remove(forked)
        self.ended.append((" ".join(arguments), status))
        return status, out.read_text(), forked.log.read_text(errors="replace")

    @contextmanager
    def on_path(self, folder: Path) -> Iterator[None]:
        """Put a program `pubswap` into a folder; at the end, stop all its processes."""
        with pubswap_on_path(folder, self.run):
            try:
                yield
            finally:
                for forked in list(self.running):
                    forked.terminate()
                until(lambda: not self.running)


@contextmanager
def shell_of(command: list[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a script; at the end, also stop what it left in the background."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        **options,
    ) as shell:
        try:
            yield shell
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)


def pages() -> set[str]:
    return {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"} | {"README"}


def test_no_command_of_a_guide_escapes() -> None:
    """Every block of commands is marked as such; exceptions give a reason, and are few."""
    exceptions = 0
    for page in pages():
        for kind, what, language, text in blocks(page):
            assert language, f"{page}: say what language this is, such as text:\n{text}"
            if language in ("sh", "console"):
                assert language == "sh", f"{page}:\n{text}"
                assert page in PAGES or kind == "not run", f"{page}:\n{text}"
            if kind == "not run":
                assert what in EXCEPTIONS, f"{page}: {what}"
                exceptions += 1
            else:
                assert kind in ("", "file"), f"{page}: {kind}"
    assert exceptions <= 13


@pytest.mark.full
@pytest.mark.timeout(_LONGEST)
def test_the_guides_do_what_they_say(tmp_path: Path, unmeasured: None) -> None:
    """Every command of every page succeeds, one page after another, starting in a clean folder."""
    folder, programs = tmp_path / "clean", tmp_path / "bin"
    for made in (folder, programs, tmp_path / "logs"):
        made.mkdir()
    for name in ("client", "deploy", "examples"):  # a reader is in a checkout
        (folder / name).symlink_to(ROOT / name)
    port = str(free_port())
    url = f"http://127.0.0.1:{port}"
    env = os.environ | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PUBSWAP_PORT": port,
        "PUBSWAP_COORDINATOR": url,
        "PUBSWAP_CLIENT_MODEL": str(ROOT / MODEL),
        "OMP_NUM_THREADS": "1",
    }
    commands = Commands(tmp_path, url)
    (programs / "sbatch").write_text('#!/bin/sh\nexec bash "$1"\n')
    (programs / "sbatch").chmod(0o755)
    with commands.on_path(programs), ExitStack() as stack:
        for page in PAGES:
            said = tmp_path / f"{page}.said"
            traced = "trap 'echo FAILED: $BASH_COMMAND' ERR\n" + script(page).replace("8470", port)
            with said.open("w") as file:
                command = ["bash", "-eu", "-o", "pipefail", "-c", traced]
                shell = stack.enter_context(shell_of(command, cwd=folder, env=env, stdout=file))
                status = shell.wait(900)
            assert status == 0, f"{page}:\n{said.read_text()[-3000:]}"
            until(lambda: len(commands.running) <= 1)  # the coordinator keeps running
            failed = [it for it in commands.ended if it[1] and not it[0].startswith("run start")]
            assert failed == [], said.read_text()[-3000:]
    assert len(commands.ended) > 40

"""`pubswap data`, as a process."""

import json
import os
import subprocess
from pathlib import Path

from pubswap_protocol.problems import read_problems
from support.forked import Forked, pubswap

SMALL = ["--private-size", "6", "--public-size", "5", "--test-size", "5"]


def pubswap_data(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
    return pubswap("data", *arguments, env=environment)


def write_rows(path: Path, count: int = 60) -> Path:
    rows = [
        {"id": n, "prompt": f"Say {n}.", "answer": n, "topic": f"t{n % 3}"} for n in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_users_file_is_divided_and_shown(tmp_path: Path) -> None:
    """`prepare` makes the sets and prints who has which; `show` prints this again and checks it."""
    own, out = write_rows(tmp_path / "own.jsonl"), tmp_path / "split"
    options = ["jsonl", "--from", str(own), "--out", str(out), "--verifier", "exact", *SMALL]
    made = pubswap_data("prepare", *options)
    assert made.returncode == 0, made.stderr
    assert len(read_problems(out / "client-4.jsonl")) == 6
    assert "client-4" in made.stdout and "t2" in made.stdout
    assert pubswap_data("show", str(out)).stdout == made.stdout
    again = pubswap_data("prepare", *options)
    assert (again.returncode, again.stdout) == (0, made.stdout)
    (out / "test.jsonl").write_text("")
    shown = pubswap_data("show", str(out))
    assert shown.returncode == 1
    assert "test.jsonl was changed" in shown.stderr


def test_without_the_hub_it_says_how_to_do_without(tmp_path: Path) -> None:
    """If the hub is not reachable, one line names --from, and nothing is left behind."""
    done = pubswap_data("prepare", "math", "--out", str(tmp_path / "out"))
    assert done.returncode == 1
    assert "--from" in done.stderr and "EleutherAI/hendrycks_math" in done.stderr
    assert "Traceback" not in done.stderr
    assert not any(tmp_path.iterdir())


def test_wrong_options_are_one_line(tmp_path: Path) -> None:
    """An unusable source, value or file is refused with its key."""
    own = write_rows(tmp_path / "own.jsonl")
    for options, reason in (
        (["maths"], "source"),
        (["math", "--alpha", "0"], "alpha"),
        (["jsonl", "--from", str(own), "--verifier", "maths"], "verifier"),
        (["jsonl", "--from", str(own), "--private-size", "600"], "private_size"),
    ):
        done = pubswap_data("prepare", *options, "--out", str(tmp_path / "out"))
        assert done.returncode == 1
        assert reason in done.stderr and len(done.stderr.splitlines()) == 1


def test_several_at_once_make_one_split(tmp_path: Path) -> None:
    """Processes that prepare the same folder at the same time all succeed with one split."""
    own, out = write_rows(tmp_path / "own.jsonl"), tmp_path / "split"
    options = ["prepare", "jsonl", "--from", str(own), "--out", str(out), *SMALL]
    logs = [tmp_path / "logs" / str(number) for number in range(3)]
    logs[0].parent.mkdir()
    running = [Forked(["data", *options], log) for log in logs]
    assert [process.wait() for process in running] == [0, 0, 0]
    assert len({log.read_text() for log in logs}) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs", "own.jsonl", "split"]

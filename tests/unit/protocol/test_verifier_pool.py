"""Verification in worker processes that really hang and crash."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers import VerifierPool
from support.chaos.verdicts import misbehaving

PROBLEM = Problem(id="1", prompt="?", answer="4")


@pytest.mark.parametrize("trouble", ["hang", "spin", "power", "crash", "raise", "grow"])
def test_a_verifier_that_fails_scores_0_and_costs_the_others_nothing(trouble: str) -> None:
    """Responses before and after it keep their scores, and the next call works."""
    texts = ["right", trouble, "right", "wrong", "right"]
    with VerifierPool(seconds=0.2 if trouble == "hang" else 0.5, scorer=misbehaving) as pool:
        assert pool.score_many("math", [("right", PROBLEM)]) == [1.0]
        started = time.monotonic()
        assert pool.score_many("math", [(text, PROBLEM) for text in texts]) == [1, 0, 1, 0, 1]
        assert time.monotonic() - started < 60
        assert pool.score_many("math", [("right", PROBLEM)]) == [1.0]


def test_modules_of_the_working_folder_are_not_imported(tmp_path: Path) -> None:
    """A random.py beside the data ended the process that verifies, and types.py all of the demo."""
    for name in ("random", "types"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError")
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "pubswap"
    script.write_text(
        "import contextlib, sys\n"
        "from pubswap_protocol.cli import main\n"
        "from pubswap_protocol.problems import Problem\n"
        "from pubswap_protocol.verifiers import VerifierPool\n"
        "if __name__ == '__main__':\n"
        "    sys.argv[1:] = ['--version']\n"
        "    with contextlib.suppress(SystemExit):\n"
        "        main()\n"
        "    with VerifierPool() as pool:\n"
        "        print(pool.score('math', ('4', Problem(id='1', prompt='?', answer='4'))).score)\n"
    )
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=240)
    assert done.stdout.endswith("\n1.0\n"), done.stderr


def test_memory_that_responses_leave_behind_costs_the_others_nothing() -> None:
    """A process is replaced once half its memory is in use; otherwise the fourth kept GiB would not
    fit.
    """
    with VerifierPool(scorer=misbehaving) as pool:
        assert pool.score_many("math", [("keep", PROBLEM)] * 9) == [1.0] * 9


def test_the_limit_is_on_cpu_time_and_a_new_process_is_cheap() -> None:
    """A response that sleeps is not cut off; ten that compute forever import the library only
    once.
    """
    with VerifierPool(seconds=0.3, scorer=misbehaving) as pool:
        assert pool.score("math", ("doze", PROBLEM)).score == 1.0  # sleeps for a second
        started = time.monotonic()
        subprocess.run([sys.executable, "-c", "import math_verify"], check=True)
        imported = time.monotonic() - started
        started = time.monotonic()
        scored = [pool.score("math", ("power", PROBLEM), 0.1) for _ in range(10)]
        assert all(one.cut_off and one.score == 0.0 for one in scored)
        assert time.monotonic() - started < 10 * imported
        assert pool.score("math", ("right", PROBLEM)).score == 1.0


@pytest.mark.parametrize("ended_by", [signal.SIGTERM, signal.SIGKILL])
def test_a_process_that_is_ended_from_outside_costs_no_response(ended_by: signal.Signals) -> None:
    """After a kill by a stopping service or the OOM killer, the response is verified again."""
    with VerifierPool(scorer=misbehaving) as pool:
        pool.score("math", ("right", PROBLEM))
        (child,) = multiprocessing.active_children()
        assert child.pid is not None
        threading.Timer(0.3, os.kill, (child.pid, ended_by)).start()
        assert pool.score("math", ("doze", PROBLEM)).score == 1.0


def test_a_problem_s_own_verifier_goes_before_the_run_s() -> None:
    """One call may mix exact and math problems."""
    own = PROBLEM.model_copy(update={"verifier": "math", "answer": "1/2"})
    with VerifierPool() as pool:
        assert pool.score_many("exact", [("0.5", own), ("4", PROBLEM), ("04", PROBLEM)]) == [
            1,
            1,
            0,
        ]


def test_bounded_verifiers_need_no_process() -> None:
    """`exact` and `choice` run in this process."""
    with VerifierPool() as pool:
        assert pool.score_many("exact", [("4", PROBLEM)] * 500) == [1.0] * 500
        assert not multiprocessing.active_children()


def test_threads_share_a_pool() -> None:
    """Concurrent callers each get their own scores."""
    results: dict[int, list[float]] = {}
    with VerifierPool(workers=2) as pool:

        def work(number: int) -> None:
            items = [(str(number), PROBLEM), ("4", PROBLEM)] * 20
            results[number] = pool.score_many("math", items)

        threads = [threading.Thread(target=work, args=(n,)) for n in (3, 4, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert results[3] == results[5] == [0.0, 1.0] * 20
    assert results[4] == [1.0, 1.0] * 20


def test_closing_leaves_no_process_behind() -> None:
    """The pool may be closed twice."""
    with VerifierPool() as pool:
        pool.score_many("math", [("4", PROBLEM)])
    pool.close()
    assert not multiprocessing.active_children()

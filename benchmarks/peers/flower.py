"""Flower's rounds: a SuperLink with its defaults (state in memory), SuperNodes and FedAvg."""

import json
import time
from pathlib import Path
from subprocess import Popen
from typing import Any

from coordination.payload import TOLERANCE, Payload
from coordination.programs import listens

from peers.outcome import PeerOutcome, entries
from peers.processes import BENCHMARKS, Tree, programs
from pubswap_client.demo.processes import free_port

APP = BENCHMARKS / "peers" / "flower_app"
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


def measure(payload: Payload, rounds: int, cap_seconds: float, scratch: Path) -> PeerOutcome:
    """Run a warm-up and up to `rounds` rounds, stopped `cap_seconds` after the first began."""
    scratch.mkdir(parents=True)
    home, log = scratch / "home", scratch / "rounds.jsonl"
    port = free_port()
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink.bench]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    config = {
        "clients": payload.clients,
        "megabytes": float(payload.megabytes),
        "rounds": 1 + rounds,
        "folder": str(payload.folder),
        "log": str(log),
    }
    with Tree(scratch / "logs", programs("flower"), QUIET | {"FLWR_HOME": str(home)}) as tree:
        _start(tree, port, payload.clients)
        words = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        run = tree.start("run", ["flwr", "run", str(APP), "bench", "--stream", "-c", words])
        _wait(run, log, 1 + rounds, cap_seconds)
        stopped = time.monotonic()
        if not entries(log):
            raise RuntimeError(
                f"Flower began no round:\n{tree.tail('run')}\n{tree.tail('superlink')}"
            )
    return _outcome(entries(log), stopped, payload)


def _start(tree: Tree, port: int, clients: int) -> None:
    link = ["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port)]
    link += ["--disable-runtime-dependency-installation"]
    process = tree.start("superlink", link)
    while not listens(port):
        if process.poll() is not None:
            raise RuntimeError(f"Flower's SuperLink ended:\n{tree.tail('superlink')}")
        time.sleep(0.2)
    for index in range(clients):
        node = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}"]
        node += ["--port", str(free_port()), "--node-config", f"index={index}"]
        tree.start(f"supernode-{index}", node)


def _wait(run: Popen[bytes], log: Path, rounds: int, cap_seconds: float) -> None:
    """Wait until all rounds are done, or `cap_seconds` after the first began (or should have)."""
    deadline = time.monotonic() + cap_seconds
    seen = False
    while time.monotonic() < deadline:
        time.sleep(0.5)
        log_entries = entries(log)
        if log_entries and not seen:
            seen, deadline = True, log_entries[0]["began"] + cap_seconds
        done = sum("seconds" in entry for entry in log_entries)
        if done >= rounds or (not seen and run.poll() is not None):
            return


def _outcome(log_entries: list[dict[str, Any]], stopped: float, payload: Payload) -> PeerOutcome:
    """The rounds up to the first that lost a client's reply or did not finish in time."""
    began = {entry["round"]: entry["began"] for entry in log_entries if "began" in entry}
    ended = {entry["round"]: entry for entry in log_entries if "seconds" in entry}
    done: list[dict[str, Any]] = []
    while (entry := ended.get(len(done) + 1)) is not None and not entry["failures"]:
        assert entry["error"] < TOLERANCE, f"Flower's mean is {entry['error']} from numpy's"
        assert entry["received"] == entry["sent"] == 4 * payload.parameters, entry
        done.append(entry)
    next_ = began.get(len(done) + 1)
    return PeerOutcome(
        warm_up=done[0]["seconds"] if done else None,
        rounds=[entry["seconds"] for entry in done[1:]],
        unfinished=None if next_ is None else stopped - next_,
        checked=max((entry["error"] for entry in done), default=None),
        bytes_each_way=4 * payload.parameters if done else None,
        lost_replies=sum(entry["failures"] for entry in ended.values()),
    )

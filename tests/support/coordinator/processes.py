"""A small federation of real processes for acceptance tests."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import httpx

from pubswap_client.coordinator.client import CoordinatorClient, wait_until_ready
from pubswap_client.coordinator.retry import Backoff
from pubswap_client.demo.demos import MODEL
from pubswap_client.demo.processes import PUBSWAP, Processes, free_port
from pubswap_client.demo.tasks import unique_problems
from pubswap_client.operator.connecting import operator_token
from pubswap_client.recipes.inheritance import merged
from pubswap_client.recipes.runfile import Prepared, create_and_open
from pubswap_client.state.membership import StoredMembership, save_membership
from pubswap_protocol import paths
from pubswap_protocol.command_line.keys import flat, nested
from pubswap_protocol.messages import (
    CreateInvite,
    CreateRun,
    Role,
    RunState,
    RunView,
    SetKind,
    WholeRun,
)
from pubswap_protocol.model import model_card
from pubswap_protocol.problems import Problem, write_problems
from pubswap_protocol.settings import RunSettings
from support.chaos.proxy import FaultProxy
from support.forked import ForkedProcesses

ONE_THREAD = {"OMP_NUM_THREADS": "1"}

# A short round of one period; run files require a longer one, but the coordinator does not.
SETTINGS = {
    "seed": 7,
    "rounds": 2,
    "local_steps": 2,
    "clients": 2,
    "verifier": "math",
    "chat_template": "none",
    "method.sampling_check": "off",  # so that runs repeat each other bit for bit
    "grpo.prompts_per_step": 4,
    "grpo.responses_per_prompt": 4,
    "grpo.learning_rate": 1e-3,
    "grpo.max_prompt_tokens": 64,
    "grpo.max_response_tokens": 32,
    "lora.rank": 8,
    "lora.alpha": 16,
}


@dataclass
class Coordinator:
    """A running coordinator and the operator's client for it."""

    processes: Processes
    api: CoordinatorClient
    folder: Path


def sums(seed: int, count: int, verifier: str | None = None) -> list[Problem]:
    """Sums of which the small model gets some right, so that there is an advantage.

    Their verifier is reasoning-gym's own, unless another is given.
    """
    records = islice(unique_problems("chain_sum", seed, "demo"), count)
    return [Problem(**record | ({"verifier": verifier} if verifier else {})) for record in records]


def serve(
    processes: Processes,
    folder: Path,
    port: int | None = None,
    program: Sequence[str] = PUBSWAP,
    env: Mapping[str, str] = {},
) -> Coordinator:
    """Start `pubswap serve`, by default on a free port, and wait until it is ready."""
    url = f"http://127.0.0.1:{port or free_port()}"
    options = ["--port", url.rsplit(":", 1)[-1], "--data-dir", str(folder / "c")]
    processes.start("coordinator", ["serve", *options], env, program)
    with CoordinatorClient(url, backoff=Backoff(tries=1)) as probe:
        wait_until_ready(probe, 60, processes.check)
    api = CoordinatorClient(url, operator_token(folder / "c" / "operator-token"), Backoff(tries=3))
    return Coordinator(processes, api, folder)


def create_run(
    coordinator: Coordinator,
    overrides: Mapping[str, Any],
    verifier: str | None = None,
    count: int = 12,
) -> RunView:
    """Create and open a run on the small model with `count` sums in each set."""
    sets = {}
    for seed, kind in enumerate(SetKind, start=1):
        path = coordinator.folder / f"{kind}.jsonl"
        write_problems(path, sums(seed, count, verifier))
        sets[kind] = path.read_bytes()
    values = nested(merged(flat(SETTINGS), flat(overrides)))
    name = values.pop("name", "acceptance")
    settings = RunSettings(**values)
    card = model_card(MODEL, settings.lora, "small-qwen3", None)
    request = CreateRun(name=name, settings=settings, model=card)
    prepared = Prepared(request, (MODEL / "tokenizer.json").read_bytes(), sets)
    return create_and_open(coordinator.api, prepared)


def enroll(
    coordinator: Coordinator,
    run: RunView,
    name: str,
    role: Role = Role.CLIENT,
    url: str | None = None,
) -> Path:
    """Invite and enrol a member whose daemon connects to `url`; returns its state folder."""
    invite = coordinator.api.invite(run.id, CreateInvite(name=name, role=role))
    with CoordinatorClient(coordinator.api.url) as anonymous:
        membership = anonymous.enroll(invite.invite)
    state = coordinator.folder / name
    url = url or coordinator.api.url
    save_membership(state, StoredMembership(coordinator=url, membership=membership))
    return state


def client_command(
    state: Path, seed: int, verifier: str | None = None, more: Sequence[str] = ()
) -> list[str]:
    """The command to start an organisation's daemon on private problems of its own."""
    data = state / "private.jsonl"
    write_problems(data, sums(seed, 10, verifier))
    options = ["--state", str(state), "--data", str(data), "--model", str(MODEL), "--threads", "1"]
    return ["client", "start", *options, *more]


def start_client(
    coordinator: Coordinator,
    state: Path,
    seed: int,
    verifier: str | None = None,
    more: Sequence[str] = (),
) -> None:
    """Start an organisation's daemon on private problems of its own, with `more` options."""
    command = client_command(state, seed, verifier, more)
    coordinator.processes.start(state.name, command, ONE_THREAD)


def start(coordinator: Coordinator, run: RunView) -> None:
    """Begin round 1."""
    coordinator.api.move_run(run.id, paths.RUN_START)


def wait_finished(coordinator: Coordinator, run: RunView, seconds: float = 240) -> WholeRun:
    """The run once it is finished; fails with a process's log if one has died."""
    deadline = time.monotonic() + seconds
    while True:
        view = coordinator.api.whole_run(run.id)
        if view.state is RunState.FINISHED:
            return view
        coordinator.processes.check()
        assert time.monotonic() < deadline, f"the run is still {view.state} in round {view.round}"
        time.sleep(0.2)


def federated_adapter(
    folder: Path,
    overrides: Mapping[str, Any],
    order: Sequence[str] = ("alpha", "beta"),
    more: Sequence[str] = (),
    sent: list[bytearray] | None = None,
) -> tuple[WholeRun, bytes]:
    """Run a federation whose clients start in this order, with `more` options.

    The first by name trains on `sums(3, 10)`, the next on `sums(4, 10)`. Returns the run and its
    adapter; `sent` gets the bytes that the clients send, one connection after another.
    """
    folder.mkdir()
    with ForkedProcesses(folder / "logs") as processes:
        coordinator = serve(processes, folder)
        port = httpx.URL(coordinator.api.url).port
        assert port is not None
        with coordinator.api, FaultProxy(port, keeps=True) as proxy:
            run = create_run(coordinator, overrides)
            url = None if sent is None else proxy.url
            states = {name: enroll(coordinator, run, name, url=url) for name in order}
            for name, state in states.items():
                seed = 3 + sorted(order).index(name)
                start_client(coordinator, state, seed=seed, more=more)
            start(coordinator, run)
            view = wait_finished(coordinator, run)
            if sent is not None:
                sent += proxy.sent
            return view, coordinator.api.global_adapter(run.id, "final")

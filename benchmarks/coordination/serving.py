"""A real `pubswap serve` with its defaults, and runs on it."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from coordination.payload import RANK, shapes
from coordination.programs import listens, running
from pubswap_client.coordinator.client import CoordinatorClient, wait_until_ready
from pubswap_client.coordinator.retry import ONCE
from pubswap_client.demo.demos import MODEL
from pubswap_client.demo.processes import PUBSWAP, free_port
from pubswap_client.operator.connecting import operator_token
from pubswap_protocol import paths
from pubswap_protocol.messages import CreateInvite, CreateRun, Hello, RunView, SetKind
from pubswap_protocol.model import model_card
from pubswap_protocol.problems import Problem
from pubswap_protocol.settings import LoraSettings, RunSettings
from pubswap_protocol.tensors.adapter import AdapterLayout
from pubswap_protocol.verifiers import verifier_version

PUBLIC = 64  # problems
LETTERS = "ABCDE"
LONGEST = "pubswap_event_loop_longest_seconds"
BLOCKED = "pubswap_event_loop_blocked_seconds"

_names = (f"bench-{number}" for number in itertools.count())


@dataclass(frozen=True)
class MeasuredCoordinator:
    """A running coordinator, and the operator's client for it."""

    url: str
    api: CoordinatorClient
    pid: int
    folder: Path

    @property
    def longest_delay(self) -> float:
        """The longest delay of its event loop in seconds, by its own metrics."""
        return self._metric(LONGEST)

    @property
    def longest_block(self) -> float:
        """The same without waits for a core."""
        return self._metric(BLOCKED)

    def _metric(self, name: str) -> float:
        text = httpx.get(self.url + paths.METRICS).text
        families = text_string_to_metric_families(text)
        return next(family.samples[0].value for family in families if family.name == name)


@dataclass(frozen=True)
class Seat:
    """The data a client process needs to take part in a run."""

    url: str
    run: str
    name: str
    token: str


@contextmanager
def serving(folder: Path, options: Sequence[str] = ()) -> Iterator[MeasuredCoordinator]:
    """Run `pubswap serve` until the block ends, by default on SQLite and a local folder.

    Several may share a folder if their database may be shared.
    """
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [*PUBSWAP, "serve", "--port", str(port), "--data-dir", str(folder / "data")]
    with running(
        [*command, *options], folder / f"serve-{port}.log", lambda: listens(port)
    ) as process:
        token = operator_token(folder / "data" / "operator-token")
        with CoordinatorClient(url, token, ONCE) as api:
            wait_until_ready(api, 60)
            yield MeasuredCoordinator(url, api, process.pid, folder)


def opened(coordinator: MeasuredCoordinator, megabytes: float, **settings: Any) -> RunView:
    """An open run with adapters of that size."""
    plain = {"verifier": "choice", "method": "fedavg", "local_steps": 1}
    run_settings = RunSettings(**{**plain, "lora": LoraSettings(rank=RANK), **settings})
    # The tokenizer is the demo model's; the layout is a larger model's.
    card = model_card(MODEL, run_settings.lora, "bench", None)
    card = card.model_copy(update={"layout": AdapterLayout(tensors=shapes(megabytes))})
    run = coordinator.api.create_run(
        CreateRun(name=next(_names), settings=run_settings, model=card)
    )
    coordinator.api.put_tokenizer(run.id, (MODEL / "tokenizer.json").read_bytes())
    for kind in SetKind:
        coordinator.api.put_set(run.id, kind, _problems())
    return coordinator.api.move_run(run.id, paths.RUN_OPEN)


def _problems() -> bytes:
    """Problems whose answer is a letter, which both `choice` and `exact` can check."""
    problems = [
        Problem(id=f"p{n}", prompt=f"Which is {n}?", answer=LETTERS[n % len(LETTERS)])
        for n in range(PUBLIC)
    ]
    lines = [problem.model_dump_json(exclude_defaults=True) + "\n" for problem in problems]
    return "".join(lines).encode()


def seated(coordinator: MeasuredCoordinator, run: RunView) -> list[Seat]:
    """All the run's clients, invited and enrolled, with the right base model."""
    hello = Hello(
        config_digest=run.model.config_digest,
        tokenizer_digest=run.model.tokenizer_digest,
        weights_digest=run.model.weights_digest,
        verifier_version=verifier_version(run.settings.verifier),
    )
    seats = []
    for number in range(run.settings.clients):
        name = f"client-{number:04d}"
        invite = coordinator.api.invite(run.id, CreateInvite(name=name))
        membership = coordinator.api.enroll(invite.invite)
        with CoordinatorClient(coordinator.url, membership.token) as api:
            api.hello(run.id, hello)
        seats.append(Seat(coordinator.url, run.id, name, membership.token))
    return seats


def start(coordinator: MeasuredCoordinator, run: RunView) -> None:
    """Begin round 1."""
    coordinator.api.move_run(run.id, paths.RUN_START)

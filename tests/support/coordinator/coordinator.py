"""A real uvicorn in a thread, and small federations of fake members over real sockets."""

import asyncio
import contextlib
import functools
import itertools
import re
import threading
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import numpy as np
import uvicorn
from pydantic import SecretStr

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.coordinator.retry import ONCE
from pubswap_client.demo.demos import MODEL
from pubswap_protocol import paths
from pubswap_protocol.base.tokenizer import load_tokenizer
from pubswap_protocol.digests import digest_of
from pubswap_protocol.messages import (
    CreateInvite,
    CreateRun,
    Hello,
    Receipt,
    Role,
    RunView,
    SetKind,
    SubmitUpdate,
    UpdateMetrics,
    WholeRun,
)
from pubswap_protocol.model import model_card
from pubswap_protocol.problems import Problem
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import Adapter, encode_adapter
from pubswap_protocol.tensors.responses import Response, encode_responses
from pubswap_protocol.verifiers import verifier_version
from pubswap_server.app import create_app
from pubswap_server.rate_limits import Rate
from pubswap_server.server import http_options
from pubswap_server.settings import ServerSettings
from support.coordinator.documented import Documented

OPERATOR_TOKEN = "operator-token-of-the-tests"
T = TypeVar("T")

TOKENIZER = (MODEL / "tokenizer.json").read_bytes()
PAD = 0  # begins no response: `run_card` takes it for a token of a turn

SETTINGS: dict[str, Any] = {
    "clients": 2,
    "rounds": 2,
    "local_steps": 2,
    "verifier": "exact",
    "lora": {"rank": 2, "alpha": 4, "target_modules": ("q_proj",)},
    "grpo": {"prompts_per_step": 2, "responses_per_prompt": 4, "max_response_tokens": 16},
}

_names = (f"run-{number}" for number in itertools.count())


@dataclass
class Server:
    """A coordinator's address, and its application."""

    url: str
    app: Any
    data_dir: Path
    closing: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def client(self, token: str | None = OPERATOR_TOKEN) -> CoordinatorClient:
        """A client without retries, closed after the test."""
        return self.closing.enter_context(CoordinatorClient(self.url, token, ONCE))

    def http(self, token: str | None = OPERATOR_TOKEN) -> httpx.Client:
        """A bare HTTP client; without TLS, because loading CAs takes longer than a request."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30, verify=False)

    def long_polls(self) -> float:
        """Number of long polls waiting at the process that answers."""
        with self.http(None) as http:
            metrics = http.get(paths.METRICS).text
        return float(re.search(r"^pubswap_long_polls (\S+)", metrics, re.MULTILINE)[1])  # type: ignore[index]

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the server's own event loop, to which its database belongs."""
        return asyncio.run_coroutine_threadsafe(work, self.app.state.loop).result(60)


@functools.cache
def api_document() -> dict[str, Any]:
    """The interface's document, made once, because it takes longer than a coordinator's start."""
    return create_app(ServerSettings(data_dir=Path("unused"))).openapi()


@contextlib.contextmanager
def serving(settings: ServerSettings) -> Iterator[Server]:
    """Run the application in a thread until the generator is closed."""
    app = create_app(settings)
    documented = Documented(app, api_document())
    config = uvicorn.Config(
        documented, port=0, log_config=None, lifespan="on", **http_options(settings)
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    app.state.loop = server.servers[0].get_loop()
    app.state.services.limits.failures.rate = Rate(1, 10_000)  # all tests share one address
    try:
        yield Server(f"http://127.0.0.1:{port}", app, settings.data_dir)
    finally:
        app.state.services.changes.close()
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()
        assert not documented.unknown, documented.unknown


def settings_for(data_dir: Path) -> ServerSettings:
    """Settings of a coordinator that notices deadlines quickly."""
    return ServerSettings(
        data_dir=data_dir,
        operator_token=SecretStr(OPERATOR_TOKEN),
        tick_seconds=0.05,
        max_wait_seconds=5,
        member_requests_per_second=5_000,  # tests send requests faster than members
    )


def problems(count: int) -> list[Problem]:
    """Problems whose answers are their numbers."""
    return [
        Problem(id=f"p{n}", prompt=f"Say {n}.", answer=str(n), topic="say") for n in range(count)
    ]


def jsonl(entries: list[Problem]) -> bytes:
    """A problem file."""
    return "".join(
        entry.model_dump_json(exclude_defaults=True) + "\n" for entry in entries
    ).encode()


def merged(overrides: dict[str, Any]) -> RunSettings:
    """The tests' settings with some overridden; tables are merged."""
    values = {**SETTINGS}
    for key, value in overrides.items():
        values[key] = {**values.get(key, {}), **value} if isinstance(value, dict) else value
    return RunSettings(**values)


def good_hello(run: RunView) -> Hello:
    """The hello of a member with the run's base model and verifier."""
    card = run.model
    return Hello(
        config_digest=card.config_digest,
        tokenizer_digest=card.tokenizer_digest,
        weights_digest=card.weights_digest,
        verifier_version=verifier_version(run.settings.verifier),
    )


@dataclass
class Federation:
    """A run with its operator and its enrolled members."""

    server: Server
    run: RunView
    operator: CoordinatorClient
    members: dict[str, CoordinatorClient] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)

    def enroll(self, name: str, role: Role = Role.CLIENT) -> CoordinatorClient:
        """Invite and enrol a member."""
        self.members[name] = self.server.client(self.join(name, role))
        return self.members[name]

    def join(self, name: str, role: Role = Role.CLIENT) -> str:
        """Invite and enrol a member without making a client; returns its token."""
        invite = self.operator.invite(self.run.id, CreateInvite(name=name, role=role))
        self.tokens[name] = self.operator.enroll(invite.invite).token
        # Over the operator's connection, because making a client takes longer than its requests.
        response = self.operator._http.post(
            paths.HELLO.format(run=self.run.id),
            headers={"Authorization": f"Bearer {self.tokens[name]}"},
            json=good_hello(self.run).model_dump(),
        )
        assert response.status_code == 204, response.text
        return self.tokens[name]

    def start(self) -> None:
        """Begin round 1."""
        self.operator.move_run(self.run.id, paths.RUN_START)

    def view(self) -> WholeRun:
        """The run as the operator sees it."""
        return self.operator.whole_run(self.run.id)

    def adapter(self, seed: int) -> Adapter:
        """A random adapter of the run's layout."""
        rng = np.random.default_rng(seed)
        return {
            name: rng.normal(size=shape).astype(np.float32)
            for name, shape in self.run.model.layout.tensors.items()
        }

    def submit(self, name: str, round_: int, adapter: Adapter, examples: int = 10) -> str:
        """Send an adapter as a member and hand it in; returns the receipt's status."""
        data = encode_adapter(self.run.model.layout, adapter)
        self.members[name].put_blob(self.run.id, data)
        return str(self.hand_in(name, round_, data, examples).status)

    def hand_in(self, name: str, round_: int, data: bytes, examples: int = 10) -> Receipt:
        """Hand in an adapter that has already been uploaded."""
        metrics = UpdateMetrics(examples=examples, steps=self.run.settings.local_steps)
        update = SubmitUpdate(adapter=digest_of(data), metrics=metrics)
        return self.members[name].submit_update(self.run.id, round_, update)

    def responses(self, name: str, round_: int, public_step: int, right: list[int]) -> bytes:
        """Responses of which the first `right[p]` to prompt p are correct."""
        prompts = self.members[name].public_step_prompts(self.run.id, round_, public_step).prompts
        count = self.run.settings.grpo.responses_per_prompt
        groups = [
            [
                self.say(entry.problem.answer if k < correct else f"no-{name}-{k}")
                for k in range(count)
            ]
            for entry, correct in zip(prompts, right, strict=True)
        ]
        return encode_responses([entry.index for entry in prompts], groups)

    def say(self, text: str) -> Response:
        """A response that states an answer and ends."""
        tokens = load_tokenizer(TOKENIZER).encode(f"Answer: {text}").ids
        tokens = np.array([*tokens[:15], self.run.model.eos_token_ids[0]], dtype=np.int32)
        return Response(tokens, np.full(len(tokens), -0.5, dtype=np.float32))

    def wait_for(self, round_: int) -> WholeRun:
        """The run once a round's adapter is published."""
        deadline = time.monotonic() + 60
        while True:
            view = self.view()
            if len(view.rounds) > round_ and view.rounds[round_].adapter:
                return view
            assert time.monotonic() < deadline, f"round {round_} was not published"
            time.sleep(0.02)


def create(server: Server, **overrides: Any) -> Federation:
    """A run that has been created and has its files, but is not open."""
    settings = merged(overrides)
    card = model_card(MODEL, settings.lora, "small", None)
    card = card.model_copy(update={"turn_token_ids": (PAD,)})
    operator = server.client()
    run = operator.create_run(CreateRun(name=next(_names), settings=settings, model=card))
    operator.put_tokenizer(run.id, TOKENIZER)
    operator.put_set(run.id, SetKind.PUBLIC, jsonl(problems(12)))
    operator.put_set(run.id, SetKind.TEST, jsonl(problems(5)))
    return Federation(server, run, operator)


def begun(server: Server, **overrides: Any) -> Federation:
    """A run in round 1 with clients a, b, ... and an evaluator."""
    federation = create(server, **overrides)
    federation.operator.move_run(federation.run.id, paths.RUN_OPEN)
    for number in range(federation.run.settings.clients):
        federation.enroll("abcdefgh"[number])
    federation.enroll("judge", Role.EVALUATOR)
    federation.start()
    return federation

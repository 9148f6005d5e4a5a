"""`vllm serve` replicas of one base model: what is loaded in one is loaded in all."""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from pubswap_client.rollout.hot_reload import AdapterVersion
from pubswap_client.rollout.vllm_http import Completions, InferenceServer, Refused, ServedModel
from pubswap_protocol.errors import EngineFault, InvalidSettings, StaleAdapter

A = TypeVar("A")
R = TypeVar("R")

# Of the two likeliest first tokens, log-probabilities this close say nothing about temperature.
SMALLEST_GAP = 1e-3


class Replicas:
    """All replicas together; `command` is the line that starts one as it must be started."""

    def __init__(self, servers: Sequence[InferenceServer], requests: int, command: str) -> None:
        """Talk to each server with at most `requests` requests at a time."""
        self.servers = servers
        self._threads = requests * len(servers)
        self._command = command

    def stop_waiting(self) -> None:
        """From now on, do not wait for a replica that is away."""
        for server in self.servers:
            server.connect_seconds = 0

    def close(self) -> None:
        """Close all connections."""
        for server in self.servers:
            server.close()

    def check_started_right(self, longest: int, probe: Sequence[int]) -> None:
        """Raises InvalidSettings unless all take `longest` tokens and process log-probabilities.

        `probe` is a prompt of token ids whose next token is sampled.
        """
        for server in self.servers:
            base = next((m for m in models_of(server) if m.parent is None), None)
            if base is None:
                raise EngineFault(f"vLLM at {server.url} names no base model in /v1/models.")
            if base.max_model_len is not None and base.max_model_len < longest:
                raise self._wrong(
                    server, f"takes {base.max_model_len} tokens, the run needs {longest}"
                )
            if reports_raw_logprobs(server, base, probe):
                raise self._wrong(server, "reports log-probabilities before temperature")

    def load(self, version: AdapterVersion) -> None:
        """Load a version into every replica.

        Raises InvalidSettings if one is not prepared for it, EngineFault if one fails.
        """
        self._everywhere(lambda server: self._load(server, version))

    def unload(self, version: AdapterVersion) -> None:
        """Forget a version; a replica that was restarted has already done so."""

        def unload(server: InferenceServer) -> None:
            with suppress(Refused):
                server.unload_adapter(version.name)

        self._everywhere(unload)

    def check(self, version: AdapterVersion) -> None:
        """Raises StaleAdapter unless every replica serves this version from its folder."""

        def check(server: InferenceServer) -> None:
            if not _serves(models_of(server), version):
                raise StaleAdapter(
                    f"vLLM at {server.url} does not serve {version.name}. Each of vllm.urls must "
                    "be one server: no load balancer, no --api-server-count above 1."
                )

        self._everywhere(check)

    def complete(
        self, version: AdapterVersion, bodies: Sequence[dict[str, Any]]
    ) -> list[Completions]:
        """The responses to each request, spread over the replicas.

        Raises StaleAdapter if one comes from another adapter, EngineFault if one is refused.
        """

        def one(place: int) -> Completions:
            server = self.servers[place % len(self.servers)]
            try:
                reply = server.complete({**bodies[place], "model": version.name})
            except Refused as error:
                kind = StaleAdapter if error.status == 404 else EngineFault
                raise kind(f"vLLM at {server.url} refuses a prompt: {error.message}") from None
            if reply.model != version.name:
                raise StaleAdapter(
                    f"vLLM at {server.url} sampled from {reply.model}, not from {version.name}."
                )
            return reply

        return in_threads(one, range(len(bodies)), self._threads)

    def _load(self, server: InferenceServer, version: AdapterVersion) -> None:
        try:
            server.load_adapter(version.name, version.path)
        except Refused as error:
            if _serves(models_of(server), version):
                return  # the reply to an earlier try was lost
            if not error.known:
                raise self._wrong(server, "does not load adapters while it runs") from None
            raise EngineFault(
                f"vLLM at {server.url} does not load {version.path}: {error.message} Can it read "
                f"this folder? It must have been started with: {self._command}"
            ) from None

    def _everywhere(self, call: Callable[[InferenceServer], None]) -> None:
        in_threads(call, self.servers, len(self.servers))

    def _wrong(self, server: InferenceServer, what: str) -> InvalidSettings:
        return InvalidSettings(f"vLLM at {server.url} {what}; start it with: {self._command}")


def models_of(server: InferenceServer) -> list[ServedModel]:
    """What a server serves; raises EngineFault if it does not tell us."""
    try:
        return server.models()
    except Refused as error:
        raise EngineFault(
            f"vLLM at {server.url} refuses to list its models: {error.message}. Is vllm.api_key "
            "the server's --api-key?"
        ) from None


def reports_raw_logprobs(server: InferenceServer, base: ServedModel, probe: Sequence[int]) -> bool:
    """Whether log-probabilities are those before temperature, where the probe can tell.

    The difference of two tokens' log-probabilities halves at twice the temperature, if they are
    processed, and stays what it is if not.
    """

    def likeliest(temperature: float) -> dict[str, float]:
        try:
            reply = server.complete(
                {
                    "model": base.id,
                    "prompt": list(probe),
                    "max_tokens": 1,
                    "temperature": temperature,
                    "top_p": 1.0,
                    "top_k": 0,
                    "seed": 0,
                    "logprobs": 2,
                    "return_tokens_as_token_ids": True,
                }
            )
        except Refused as error:
            raise EngineFault(f"vLLM at {server.url} refuses a probe: {error.message}") from None
        logprobs = reply.choices[0].logprobs if reply.choices else None
        return (logprobs and logprobs.top_logprobs and logprobs.top_logprobs[0]) or {}

    cold, warm = likeliest(1.0), likeliest(2.0)
    tokens = sorted(cold.keys() & warm.keys(), key=cold.__getitem__)
    if len(tokens) < 2:
        return False
    first, last = tokens[-1], tokens[0]
    gap = cold[first] - cold[last]
    return gap > SMALLEST_GAP and warm[first] - warm[last] > 0.75 * gap


def in_threads(call: Callable[[A], R], arguments: Sequence[A], threads: int) -> list[R]:
    """The results in order; on the first error, which is raised, what has not begun is left out.

    The threads are daemons: when the daemon is told to stop, it does not wait for a long answer,
    and vLLM gives up a request whose connection has gone.
    """
    waiting: SimpleQueue[int] = SimpleQueue()
    finished: SimpleQueue[tuple[int, R] | Exception] = SimpleQueue()
    ended = threading.Event()
    for place in range(len(arguments)):
        waiting.put(place)

    def work() -> None:
        with suppress(Empty):
            while not ended.is_set():
                place = waiting.get_nowait()
                try:
                    finished.put((place, call(arguments[place])))
                except Exception as error:
                    ended.set()
                    finished.put(error)

    for _ in range(min(threads, len(arguments))):
        threading.Thread(target=work, daemon=True, name="vllm").start()
    results: dict[int, R] = {}
    try:
        while len(results) < len(arguments):
            done = finished.get()
            if isinstance(done, Exception):
                raise done
            results[done[0]] = done[1]
    finally:
        ended.set()
    return [results[place] for place in range(len(arguments))]


def _serves(models: Sequence[ServedModel], version: AdapterVersion) -> bool:
    return any((m.id, m.root) == (version.name, str(version.path)) for m in models)

"""Rollouts by `vllm serve` replicas that the organisation runs itself.

Adapters are loaded in all replicas, and prompts are spread over them.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pubswap_client.policy.policy import Policy
from pubswap_client.rollout.hot_reload import AdapterVersion, HotReloadEngine, Sampled
from pubswap_client.rollout.threads import in_threads
from pubswap_client.rollout.transformers_engine import Prompts
from pubswap_client.rollout.vllm_http import (
    REQUESTS,
    Completions,
    InferenceServer,
    ServedModel,
    VllmRefused,
)
from pubswap_client.rollout.vllm_sampling import lora_rank
from pubswap_client.settings import VllmSettings
from pubswap_protocol.errors import EngineFault, InvalidSettings, StaleAdapter

# The two likeliest first tokens' log-probabilities must differ by more to reveal the temperature.
SMALLEST_GAP = 1e-3


class VllmServerEngine(HotReloadEngine):
    """The replicas with the policy's adapter."""

    def __init__(self, policy: Policy, model: Path, work: Path, settings: VllmSettings) -> None:
        """Check the replicas in `settings.urls`, and load the adapter, written below `work`.

        Raises InvalidSettings, with the command to start a replica, if one was started
        differently, and EngineFault if one does not answer.
        """
        super().__init__(policy, model, work)
        key = settings.api_key.get_secret_value() if settings.api_key else None
        self._servers = [InferenceServer(url, key) for url in settings.urls]
        self._command = serve_command(policy, model)
        try:
            for server in self._servers:
                self._check_start(server)
            self.current()
        except BaseException:
            self._disconnect()
            raise

    def sample(self, prompts: Prompts, parameters: Sequence[dict[str, Any]]) -> list[list[Sampled]]:
        bodies = [
            {**options, "prompt": list(prompt), "return_token_ids": True}
            for prompt, options in zip(prompts, parameters, strict=True)
        ]
        version = self.current()
        try:
            replies = self._complete(version, bodies)
        except StaleAdapter:
            # A replica was restarted since the check. `current` loads the adapter in all again.
            replies = self._complete(self.current(), bodies)
        return [_responses(reply) for reply in replies]

    def close(self) -> None:
        """Unload the adapter and close all connections."""
        for server in self._servers:
            server.connect_seconds = 0  # do not wait for one that is down
        try:
            super().close()
        finally:
            self._disconnect()

    def load(self, version: AdapterVersion) -> None:
        def load(server: InferenceServer) -> None:
            try:
                server.load_adapter(version.name, version.path)
            except VllmRefused as error:
                if _serves(server, version):
                    return  # an earlier try loaded it, but its reply was lost
                raise EngineFault(
                    f"vLLM at {server.url} does not load {version.path}: {error.message} Can it "
                    f"read this folder? It must have been started with: {self._command}"
                ) from None

        in_threads(load, self._servers, len(self._servers))

    def unload(self, version: AdapterVersion) -> None:
        def unload(server: InferenceServer) -> None:
            with suppress(VllmRefused):  # a replica that was restarted has already forgotten it
                server.unload_adapter(version.name)

        in_threads(unload, self._servers, len(self._servers))

    def check(self, version: AdapterVersion) -> None:
        def check(server: InferenceServer) -> None:
            if not _serves(server, version):
                raise StaleAdapter(
                    f"vLLM at {server.url} does not serve {version.name}. Each of vllm.urls must "
                    "be one server: no load balancer, no --api-server-count above 1."
                )

        in_threads(check, self._servers, len(self._servers))

    def _complete(
        self, version: AdapterVersion, bodies: Sequence[dict[str, Any]]
    ) -> list[Completions]:
        """The responses to each request, spread over the replicas.

        Raises StaleAdapter if one comes from another adapter, EngineFault if one is refused.
        """

        def complete(index: int) -> Completions:
            server = self._servers[index % len(self._servers)]
            try:
                reply = server.complete({**bodies[index], "model": version.name})
            except VllmRefused as error:
                kind = StaleAdapter if error.status == 404 else EngineFault
                raise kind(f"vLLM at {server.url} refuses a prompt: {error.message}") from None
            if reply.model != version.name:
                raise StaleAdapter(
                    f"vLLM at {server.url} sampled from {reply.model}, not from {version.name}."
                )
            return reply

        return in_threads(complete, range(len(bodies)), REQUESTS * len(self._servers))

    def _check_start(self, server: InferenceServer) -> None:
        """Raises InvalidSettings unless it takes the run's lengths and processes log-probs."""
        longest = self.policy.settings.grpo.longest_row
        base = server.base_model()
        if base.max_model_len is not None and base.max_model_len < longest:
            raise self._wrong(server, f"takes {base.max_model_len} tokens, the run needs {longest}")
        probe = [token % self.policy.card.vocabulary for token in (5, 6, 7, 8)]
        if reports_raw_logprobs(server, base, probe):
            raise self._wrong(server, "reports log-probabilities before temperature")

    def _disconnect(self) -> None:
        for server in self._servers:
            server.close()

    def _wrong(self, server: InferenceServer, what: str) -> InvalidSettings:
        return InvalidSettings(f"vLLM at {server.url} {what}; start it with: {self._command}")


def serve_command(policy: Policy, model: Path) -> str:
    """The command that starts a replica for this policy; two members can share it."""
    rank = lora_rank(policy.settings.lora.rank)
    dtype = str(policy.model.dtype).removeprefix("torch.")
    return (
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True VLLM_NO_USAGE_STATS=1 "
        f"vllm serve {model} --dtype {dtype} --max-model-len {policy.settings.grpo.longest_row} "
        f"--enable-lora --max-lora-rank {rank} --max-loras 2 --max-cpu-loras 4 "
        "--logprobs-mode processed_logprobs"
    )


def reports_raw_logprobs(server: InferenceServer, base: ServedModel, probe: Sequence[int]) -> bool:
    """Whether log-probabilities are reported before temperature, as far as the probe can tell.

    `probe` is a prompt of token ids whose next token is sampled. At twice the temperature, the
    difference of two tokens' log-probabilities halves if they are processed, and stays if not.
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
        except VllmRefused as error:
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


def _serves(server: InferenceServer, version: AdapterVersion) -> bool:
    named = (version.name, str(version.path))
    return any((model.id, model.root) == named for model in server.models())


def _responses(reply: Completions) -> list[Sampled]:
    responses: list[Sampled] = []
    for choice in sorted(reply.choices, key=lambda choice: choice.index):
        if choice.token_ids is None or choice.logprobs is None:
            raise EngineFault("vLLM gave no token ids or log-probabilities; it is too old.")
        responses.append((choice.token_ids, choice.logprobs.token_logprobs))
    return responses

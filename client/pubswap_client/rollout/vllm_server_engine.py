"""Rollouts by `vllm serve` replicas that the organisation runs itself."""

import logging
from collections.abc import Sequence
from pathlib import Path

from pubswap_client.policy.policy import Policy
from pubswap_client.rollout.hot_reload import AdapterFolders, HotReload
from pubswap_client.rollout.vllm_engine import lora_rank
from pubswap_client.rollout.vllm_http import Completions, InferenceServer
from pubswap_client.rollout.vllm_replicas import Replicas
from pubswap_client.rollout.vllm_sampling import checked_response, sampling_parameters
from pubswap_client.settings import VllmSettings
from pubswap_protocol.errors import EngineFault, StaleAdapter
from pubswap_protocol.tensors.responses import Response

log = logging.getLogger(__name__)


class VllmServerEngine:
    """The replicas with the policy's adapter, loaded into all of them when it has changed."""

    def __init__(self, policy: Policy, model: Path, work: Path, settings: VllmSettings) -> None:
        """Check the replicas in `settings.urls`, and load the adapter, written below `work`.

        Raises InvalidSettings, with the command to start a replica, if one was started in
        another way, and EngineFault if one does not answer.
        """
        self.policy = policy
        key = settings.api_key.get_secret_value() if settings.api_key else None
        servers = [
            InferenceServer(
                url, key, settings.connect_seconds, settings.response_seconds, settings.requests
            )
            for url in settings.urls
        ]
        self._replicas = Replicas(servers, settings.requests, serve_command(policy, model))
        self._reload = HotReload(AdapterFolders(policy, work, str(model)), self._replicas)
        try:
            self._replicas.check_started_right(_longest(policy), _probe(policy))
            self._reload.current()
        except BaseException:
            self._replicas.close()
            raise

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        count: int,
        max_tokens: int,
        temperature: float,
        seed: int,
    ) -> list[list[Response]]:
        """`count` responses to each prompt, of at most `max_tokens` tokens, with log-probs.

        Raises StaleAdapter if another adapter than the policy's is served, EngineFault for an
        answer that cannot be used.
        """
        bodies = [
            {
                **sampling_parameters(
                    self.policy.card, count, max_tokens, temperature, seed, place
                ),
                "prompt": list(prompt),
                "return_token_ids": True,
            }
            for place, prompt in enumerate(prompts)
        ]
        version = self._reload.current()
        try:
            replies = self._replicas.complete(version, bodies)
        except StaleAdapter:
            # A replica was restarted since we looked. Asked again, all load the adapter anew.
            replies = self._replicas.complete(self._reload.current(), bodies)
        return [self._group(reply, count, max_tokens) for reply in replies]

    def close(self) -> None:
        """Unload the adapter and close all connections."""
        self._replicas.stop_waiting()
        try:
            self._reload.close()
        except EngineFault as error:
            log.warning("The adapter could not be unloaded: %s", error.detail)
        finally:
            self._replicas.close()

    def _group(self, reply: Completions, count: int, max_tokens: int) -> list[Response]:
        choices = sorted(reply.choices, key=lambda choice: choice.index)
        if len(choices) != count:
            raise EngineFault(f"vLLM gave {len(choices)} responses instead of {count}.")
        group = []
        for choice in choices:
            if choice.token_ids is None or choice.logprobs is None:
                raise EngineFault("vLLM gave no token ids or log-probabilities; it is too old.")
            logprobs = choice.logprobs.token_logprobs
            group.append(checked_response(choice.token_ids, logprobs, max_tokens, self.policy.card))
        return group


def serve_command(policy: Policy, model: Path) -> str:
    """The command that starts a replica for this policy; two members can share it."""
    rank = lora_rank(policy.settings.lora.rank)
    dtype = str(policy.model.dtype).removeprefix("torch.")
    return (
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True VLLM_NO_USAGE_STATS=1 "
        f"vllm serve {model} --dtype {dtype} --max-model-len {_longest(policy)} "
        f"--enable-lora --max-lora-rank {rank} --max-loras 2 --max-cpu-loras 4 "
        "--logprobs-mode processed_logprobs"
    )


def _longest(policy: Policy) -> int:
    grpo = policy.settings.grpo
    return grpo.max_prompt_tokens + grpo.max_response_tokens


def _probe(policy: Policy) -> list[int]:
    """A few tokens of the vocabulary."""
    return [token % policy.card.vocabulary for token in (5, 6, 7, 8)]

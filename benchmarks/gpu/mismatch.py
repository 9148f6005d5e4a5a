"""An engine's log-probabilities against the trainer's."""

from collections.abc import Sequence

from torch import Tensor

from pubswap_client.policy.groups import Group, collate
from pubswap_client.policy.logprobs import response_logprobs
from pubswap_client.policy.policy import Policy
from pubswap_protocol.tensors.responses import Response

TOKENS = 4096  # at a time


def apart(
    policy: Policy,
    prompts: Sequence[list[int]],
    groups: Sequence[list[Response]],
    temperature: float,
) -> Tensor:
    """Each sampled token's absolute difference in nats, for all responses in a row."""
    batch = collate(
        [
            Group(prompt, group, [0.0] * len(group))
            for prompt, group in zip(prompts, groups, strict=True)
        ]
    )
    trained = response_logprobs(policy, batch, temperature=temperature, budget=TOKENS)
    return (trained - batch.behaviour).abs()[batch.response_mask]

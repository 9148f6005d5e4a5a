"""An engine's log-probabilities compared with the trainer's."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pubswap_protocol.tensors.responses import Response

if TYPE_CHECKING:
    from torch import Tensor

    from pubswap_client.policy.policy import Policy

TEXTS = ["1 + 2 =", "30 + 4 =", "5 - 3 + 8 =", "9 ="]
Groups = Sequence[Sequence[Response]]


def compared(policy: "Policy", groups: Groups, temperature: float = 0.7) -> "Tensor":
    """Each token's absolute difference between the engine's log-probability and the trainer's."""
    import torch

    from pubswap_client.policy.groups import Group, collate
    from pubswap_client.policy.logprobs import response_logprobs

    batch = collate(
        [
            Group(policy.encode(text), group, [0.0] * len(group))
            for text, group in zip(TEXTS, groups, strict=True)
        ],
    )
    recomputed = response_logprobs(policy, batch, temperature, budget=2048)
    sampled = torch.zeros_like(recomputed)
    for row, response in enumerate(response for group in groups for response in group):
        sampled[row, : len(response.logprobs)] = torch.tensor(response.logprobs)
    return (recomputed - sampled).abs()[batch.response_mask]

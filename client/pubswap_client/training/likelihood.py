"""How likely peers' responses are under our own policy, and which of them are the most likely."""

from collections.abc import Sequence

import torch

from pubswap_client.training.groups import Group, collate
from pubswap_client.training.logprobs import response_logprobs
from pubswap_client.training.policy import Policy
from pubswap_protocol.offers import Offer
from pubswap_protocol.responses import Response


def choose(policy: Policy, prompt: Sequence[int], offer: Offer, budget: int) -> list[Response]:
    """The group of an offer with the most likely candidates in its places.

    Of equally likely ones, those that were drawn first. At most `budget` tokens are computed at a
    time, and none if there is nothing to choose.
    """
    count = len(offer.candidates)
    if count == len(offer.places):
        return offer.taken(range(count))
    scores = mean_logprobs(policy, prompt, offer.candidates, budget)
    return offer.taken(sorted(range(count), key=lambda place: -scores[place]))


def mean_logprobs(
    policy: Policy, prompt: Sequence[int], responses: Sequence[Response], budget: int
) -> list[float]:
    """(1/|y|) sum_t log pi(y_t) of each response to a prompt, at the training temperature.

    The mean, for a sum would rank by length.
    """
    group = Group(prompt, responses, [0.0] * len(responses))
    batch = collate([group], policy.card.eos_token_ids, advantage_epsilon=0.0)
    logprobs = response_logprobs(policy, batch, policy.settings.grpo.temperature, budget)
    means: list[float] = (logprobs.sum(dim=1) / torch.tensor(batch.lengths)).tolist()
    return means

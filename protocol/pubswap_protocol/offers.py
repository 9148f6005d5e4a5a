"""What an exchange offers a receiver that chooses itself (swap.donors = "likely").

A file for P prompts with K own responses each, and C candidates in all, holds

    prompts     int32   (P,)       positions in the public set
    places      uint8   (P, K)     1 where a candidate is to take an own response's place
    candidates  int32   (P,)       how many candidates there are, no fewer than places
    lengths     int32   (P K + C,) tokens of the own responses, and then of the candidates
    tokens      int32   (S,)       of all of them, one after another
    logprobs    float32 (S,)       of each token under the policy that sampled it

Nothing in the file names a donor, and the candidates stand in the order in which they were drawn.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from safetensors.numpy import save

from pubswap_protocol.errors import InvalidResponses
from pubswap_protocol.responses import (
    Group,
    Response,
    ResponseRules,
    check_prompts,
    read_arrays,
    split,
)

_DTYPES = {
    "prompts": "I32",
    "places": "U8",
    "candidates": "I32",
    "lengths": "I32",
    "tokens": "I32",
    "logprobs": "F32",
}


@dataclass(frozen=True, slots=True)
class Offer:
    """One prompt's `own` responses (K,), the places to fill, and what may fill them."""

    own: Group
    places: tuple[int, ...]
    candidates: Group

    def taken(self, order: Sequence[int]) -> list[Response]:
        """The group with the first candidates of this `order` in the places."""
        group = list(self.own)
        for place, candidate in zip(self.places, order, strict=False):
            group[place] = self.candidates[candidate].as_donated()
        return group


def encode_offers(prompts: Sequence[int], offers: Sequence[Offer]) -> bytes:
    """The file for `offers` (P,), which are for `prompts` (P,) in order."""
    flat = [response for offer in offers for response in offer.own]
    flat += [response for offer in offers for response in offer.candidates]
    places = np.zeros((len(offers), len(offers[0].own)), dtype=np.uint8)
    for row, offer in zip(places, offers, strict=True):
        row[list(offer.places)] = 1
    data: bytes = save(
        {
            "prompts": np.asarray(prompts, dtype=np.int32),
            "places": places,
            "candidates": np.array([len(offer.candidates) for offer in offers], dtype=np.int32),
            "lengths": np.array([len(response.tokens) for response in flat], dtype=np.int32),
            "tokens": np.concatenate([r.tokens for r in flat]).astype(np.int32),
            "logprobs": np.concatenate([r.logprobs for r in flat]).astype(np.float32),
        }
    )
    return data


def decode_offers(data: bytes | memoryview, rules: ResponseRules) -> list[Offer]:
    """The offers (P,) of a file, in the order of `rules.prompts`.

    Raises InvalidResponses for anything that the rules do not allow, for more places than half a
    group, and for fewer candidates than places.
    """
    arrays = read_arrays(data, _DTYPES)
    check_prompts(arrays["prompts"], rules)
    count, size = len(rules.prompts), rules.responses_per_prompt
    lengths, places, candidates = arrays["lengths"], arrays["places"], arrays["candidates"]
    if places.shape != (count, size):
        raise InvalidResponses(f"places must have the shape {(count, size)}.")
    if candidates.shape != (count,) or candidates.min() < 0:
        raise InvalidResponses(f"candidates must be {count} numbers from 0 on.")
    total = count * size + int(candidates.sum(dtype=np.int64))
    if lengths.shape != (total,):
        raise InvalidResponses(f"lengths must have the shape ({total},).")
    filled = (places != 0).sum(axis=1)
    if (filled > size // 2).any() or (filled > candidates).any():
        raise InvalidResponses(
            "An offer fills at most half a group, and has a candidate for each place."
        )
    flat = iter(split(lengths, arrays["tokens"], arrays["logprobs"], rules))
    own = [[next(flat) for _ in range(size)] for _ in range(count)]
    return [
        Offer(
            own=group,
            places=tuple(np.flatnonzero(row).tolist()),
            candidates=[next(flat) for _ in range(offered)],
        )
        for group, row, offered in zip(own, places, candidates.tolist(), strict=True)
    ]

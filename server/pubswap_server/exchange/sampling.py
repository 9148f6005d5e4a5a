"""The check that donated responses were sampled: seeds, the donors' opaque numbers, the verdict.

A member draws the responses to a public step with Gumbel noise from a seed that it is given. A
receiver reports the evidence on each donor's responses, in nats, that other noise drew them (a
log-likelihood ratio, see the client's training/evidence.py).

Seeds and numbers are derived from a secret of the run and not from its seed, which members know.
With the seed, a receiver of a response could try all members' names to find its donor.
"""

import hmac
import json
import math
from collections.abc import Sequence

from pubswap_protocol.draws import response_seed
from pubswap_protocol.errors import InvalidResponses
from pubswap_protocol.tensors.responses import UNVERIFIED, Response

BITS = 53  # of integers that every JSON reader keeps exactly
ENOUGH = 128  # responses needed for a verdict
LIMIT = math.log(1e6)  # nats: exceeded in 1 of 10^6 verdicts on honest donors that drift as assumed


def doubtful(responses: int, evidence: float) -> bool | None:
    """Whether this evidence says that responses were not sampled; None while they are too few."""
    return evidence > LIMIT if responses >= ENOUGH else None


def sampling_seed(secret: str, member: str, round_: int, public_step: int) -> int:
    """The seed of a member's responses in a public step: 0..2^53-1."""
    return _number(secret, "sampling", member, round_, public_step)


def donor_number(secret: str, receiver: str, donor: str) -> int:
    """The number of a donor for one receiver in the whole run: 1..2^52.

    Receivers that compare numbers learn nothing, because each knows a donor by a different one.
    """
    return _number(secret, "donor", receiver, donor) // 2 + 1


def check_seeds(groups: Sequence[Sequence[Response]], seed: int | None) -> None:
    """Check that all responses or none claim the member's noise; raises InvalidResponses.

    A member that could choose would claim none for the responses that it forged.
    """
    claimed = [[response.seed for response in group] for group in groups]
    if all(value == UNVERIFIED for group in claimed for value in group):
        return
    if any(value == UNVERIFIED for group in claimed for value in group):
        raise InvalidResponses(
            f"Some of `seeds` are {UNVERIFIED}, for responses that were drawn in another way, and "
            "some are not: give the seeds of all responses to a public step, or of none."
        )
    expected = [
        None if seed is None else [response_seed(seed, prompt, k) for k in range(len(group))]
        for prompt, group in enumerate(claimed)
    ]
    if claimed != expected:
        raise InvalidResponses(
            "`seeds` do not match the sampling_seed that came with the prompts; leave them out "
            "if the responses were drawn in another way."
        )


def _number(secret: str, *key: int | str) -> int:
    digest = hmac.digest(bytes.fromhex(secret), json.dumps(key).encode(), "sha256")
    return int.from_bytes(digest[:8], "little") >> (64 - BITS)

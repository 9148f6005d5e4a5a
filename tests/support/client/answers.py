"""Responses to public prompts with any given text."""

import time
from collections.abc import Callable, Sequence

import numpy as np

from pubswap_protocol.base.tokenizer import load_tokenizer
from pubswap_protocol.tensors.responses import Response, encode_responses
from support.coordinator.coordinator import TOKENIZER, Federation

# A few tokens each; no machine can compute the first three.
BOMBS = (
    r"\boxed{9^{9^{9^9}}}",
    r"$10^{10^{10^{10}}}$",
    r"\boxed{7^{7^{7^7}}+1}",
    r"\boxed{99999999!}",
    r"\boxed{(x+y+z+1)^{200}(x-y)^{99}}",
    r"\boxed{\sqrt{2^{99999999}+1}}",
)


def answers(
    fed: Federation, name: str, text: Callable[[int, str], str], public_step: int = 1
) -> bytes:
    """A member's responses of round 1; `text(k, answer)` is the k-th to a prompt of that answer."""
    tokenizer, run = load_tokenizer(TOKENIZER), fed.run
    prompts = fed.members[name].public_step_prompts(run.id, 1, public_step).prompts

    def say(words: str) -> Response:
        ids = [*tokenizer.encode(words).ids, run.model.eos_token_ids[0]]
        return Response(np.array(ids, dtype=np.int32), np.full(len(ids), -0.5, dtype=np.float32))

    groups = [
        [say(text(k, p.problem.answer)) for k in range(run.settings.grpo.responses_per_prompt)]
        for p in prompts
    ]
    return encode_responses([p.index for p in prompts], groups)


def honest(k: int, answer: str) -> str:
    """Half of each group is right."""
    return rf"\boxed{{{answer}}}" if k % 2 else r"\boxed{-1}"


def bomb(k: int, answer: str) -> str:
    """Always the first bomb."""
    return BOMBS[0]


def exchange_seconds(fed: Federation, names: Sequence[str], bodies: dict[str, bytes]) -> float:
    """How long a run's honest members wait for their exchange, from the first one's responses."""
    began = time.monotonic()
    for name in names:
        fed.members[name].submit_responses(fed.run.id, 1, 1, bodies[name])
    for name in names:
        fed.members[name].exchanged(fed.run.id, 1, 1)
    return time.monotonic() - began

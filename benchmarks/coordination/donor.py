"""A client in a public step: long responses, a known number of which are right."""

import time
from typing import Any

import numpy as np

from coordination.serving import LETTERS, Seat
from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.demo.demos import MODEL
from pubswap_protocol.base.tokenizer import load_tokenizer
from pubswap_protocol.messages import RunView
from pubswap_protocol.tensors.responses import (
    Response,
    ResponseRules,
    decode_responses,
    encode_responses,
)

# The last client's responses trigger the exchange; the others are waiting for it by then.
WAITING_SECONDS = 0.5


class Donor:
    """Every second client has more than half its responses right; the others receive some."""

    def __init__(self, seat: Seat, run: RunView, index: int) -> None:
        self._seat, self._run = seat, run
        self._api = CoordinatorClient(seat.url, seat.token)
        self._tokenizer = load_tokenizer((MODEL / "tokenizer.json").read_bytes())
        self._is_last = index == run.settings.clients - 1
        self._count = run.settings.grpo.responses_per_prompt
        self._right = self._count - 2 if index % 2 else 1
        self._rng = np.random.default_rng(index)
        self._words = np.unique(self._ids("the quick brown fox jumps over the lazy dog 0123456789"))
        self._public_step = 0
        self._prompts: tuple[int, ...] = ()
        self._file = self._received = b""

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text).ids)

    def prepare(self, public_step: int) -> None:
        """Make the responses; all but the last client hand them in."""
        self._public_step = public_step
        prompts = self._api.public_step_prompts(self._run.id, 1, public_step).prompts
        self._prompts = tuple(entry.index for entry in prompts)
        groups = [self._group(entry.problem.answer) for entry in prompts]
        self._file = encode_responses(self._prompts, groups)
        if not self._is_last:
            self._api.submit_responses(self._run.id, 1, public_step, self._file)

    def _group(self, answer: str) -> list[Response]:
        wrong = LETTERS[(LETTERS.index(answer) + 1) % len(LETTERS)]
        return [self._response(answer if k < self._right else wrong) for k in range(self._count)]

    def _response(self, answer: str) -> Response:
        """A response of the longest length allowed, ending in an answer and EOS."""
        length = self._run.settings.grpo.max_response_tokens
        tail = [*self._ids(f"\nAnswer: {answer}"), self._run.model.eos_token_ids[0]]
        body = self._rng.choice(self._words, length - len(tail))
        tokens = np.concatenate([body, tail]).astype(np.int32)
        return Response(tokens, np.full(length, -0.5, dtype=np.float32))

    def go(self) -> dict[str, Any]:
        """Wait for the groups to train on; the last client hands in its responses first."""
        sent = None
        if self._is_last:
            time.sleep(WAITING_SECONDS)
            sent = time.monotonic()
            self._api.submit_responses(self._run.id, 1, self._public_step, self._file)
        self._received = bytes(self._api.exchanged(self._run.id, 1, self._public_step))
        return {"sent": sent, "up": len(self._file), "down": len(self._received)}

    def check(self) -> float:
        """Return 0; raises AssertionError if the donated responses do not follow the rule."""
        rules = ResponseRules.of(self._run.model, self._run.settings, self._prompts)
        donated = [
            sum(response.donated for response in group)
            for group in decode_responses(self._received, rules)
        ]
        expected = max(0, self._count // 2 - self._right)
        assert donated == [expected] * len(donated), f"{donated} donated, not {expected} each"
        return 0.0

    def close(self) -> None:
        """Close the connection."""
        self._api.__exit__()

"""The form of a response: the one definition for whoever samples, judges, exchanges or trains it.

A response has at most one end token, and only as its last token; without one it has exactly the
longest length. Nothing else is a response, so nothing needs to be cut, and the text that a verifier
judges is the text of all tokens that are trained.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from pubswap_protocol.base.tokenizer import decode
from pubswap_protocol.errors import InvalidResponses

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from pubswap_protocol.model import ModelCard
    from pubswap_protocol.settings import RunSettings

Ids = NDArray[Any]


@dataclass(frozen=True, slots=True)
class ResponseForm:
    """The form that a run's model and settings give to responses.

    `ends` are the end-of-sequence tokens and the run's stop tokens. `turns` are those that the chat
    template writes between messages; a response with one is the member's own, but no donation.
    """

    ends: tuple[int, ...]
    longest: int
    vocabulary: int
    turns: tuple[int, ...] = ()

    @classmethod
    def of(cls, card: "ModelCard", settings: "RunSettings") -> Self:
        return cls(
            ends=card.eos_token_ids,
            longest=settings.grpo.max_response_tokens,
            vocabulary=card.vocabulary,
            turns=tuple(set(card.turn_token_ids) - set(card.eos_token_ids)),
        )

    def fault(self, tokens: Ids, lengths: Ids) -> str | None:
        """Why concatenated `tokens` (S,) of `lengths` (n,), S in all, are not n responses."""
        if lengths.min() < 1 or lengths.max() > self.longest:
            return f"A response has 1 to {self.longest} tokens."
        if tokens.min() < 0 or tokens.max() >= self.vocabulary:
            return f"Token ids must be in 0..{self.vocabulary - 1}."
        ends, last = np.isin(tokens, self.ends), np.cumsum(lengths, dtype=np.int64) - 1
        ended = ends[last]
        ends[last] = False
        if ends.any():
            return f"A response ends at its first end token (one of {_few(self.ends)})."
        if (~ended & (lengths < self.longest)).any():
            return (
                f"A response ends with an end token (one of {_few(self.ends)}) or has "
                f"{self.longest} tokens."
            )
        return None

    def check(self, tokens: Ids, lengths: Ids) -> None:
        """Raises InvalidResponses with the `fault`, if there is one."""
        if (fault := self.fault(tokens, lengths)) is not None:
            raise InvalidResponses(fault)

    def donatable(self, tokens: Ids) -> bool:
        """Whether peers may get this response (T,): it has no token that begins or ends a turn."""
        return not np.isin(tokens, self.turns).any()

    def text(self, tokenizer: "Tokenizer", tokens: Ids) -> str:
        """The text of a response (T,): all tokens but the end token, special ones written out."""
        ended = len(tokens) > 0 and int(tokens[-1]) in self.ends
        return decode(tokenizer, tokens[:-1] if ended else tokens)


def _few(ids: Iterable[int]) -> str:
    numbers = [str(token) for token in ids]
    return ", ".join(numbers[:8]) + (", …" if len(numbers) > 8 else "")

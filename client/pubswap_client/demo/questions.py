"""Four kinds of questions about whole numbers, of which a small real model gets a fifth right."""

import random
from collections.abc import Iterator

from pubswap_protocol.problems import Problem

KINDS = ("sum", "difference", "product", "quotient")
_NUMBERS = range(2, 13)


def questions(kind: str, seed: int) -> Iterator[Problem]:
    """All 121 questions of a kind, in an order drawn by the seed."""
    pairs = [(a, b) for a in _NUMBERS for b in _NUMBERS]
    rng = random.Random(f"{kind} {seed}")  # noqa: S311 - a reproducible order, not a secret
    rng.shuffle(pairs)
    for a, b in pairs:
        question, answer = {
            "sum": (f"{a} + {b}", a + b),
            "difference": (f"{a + b} - {b}", a),
            "product": (f"{a} x {b}", a * b),
            "quotient": (f"{a * b} / {b}", a),
        }[kind]
        yield Problem(
            id=f"{kind}-{a}-{b}",
            prompt=f"Compute {question}. Reply with the number only.",
            answer=str(answer),
            topic=kind,
        )

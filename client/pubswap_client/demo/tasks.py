"""The demo's problems: eight topics of reasoning-gym in sizes that a small model can learn.

The base model is pretrained on prompts of one half of a fixed two-way division of all prompts
(by the parity of the SHA-256 of the text), and the demo draws from the other half, so that no
private, public or test problem was ever shown to the base model with an answer.
"""

import random
from collections.abc import Iterator
from typing import Any

from pubswap_client.data.drawing import Split, dirichlet_split
from pubswap_client.data.tasks import Half, Record, TaskSpec
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.problems import Problem

# Tasks of reasoning-gym, with the configuration of their generators.
TOPICS: dict[str, dict[str, Any]] = {
    "chain_sum": {"min_terms": 3, "max_terms": 3, "min_digits": 1, "max_digits": 1},
    "decimal_chain_sum": {
        "min_terms": 2,
        "max_terms": 2,
        "min_digits": 1,
        "max_digits": 1,
        "min_decimal_places": 1,
        "max_decimal_places": 1,
    },
    "gcd": {"min_value": 2, "max_value": 36},
    "leg_counting": {"min_animals": 2, "max_animals": 2, "min_instances": 1, "max_instances": 5},
    "letter_counting": {"min_words": 2, "max_words": 2},
    "products": {"min_terms": 3, "max_terms": 3, "min_digits": 1, "max_digits": 1},
    "simple_equations": {"min_terms": 2, "max_terms": 2, "min_value": 1, "max_value": 9},
    "spell_backward": {"min_word_len": 4, "max_word_len": 6},
}

# Longer prompts (rare, long words) are skipped, so that every prompt is cheap.
MAX_PROMPT_CHARACTERS = 200
ALPHA = 0.3


def unique_problems(topic: str, seed: int, half: Half) -> Iterator[Record]:
    """Yield this topic's problems of one half without repeating a prompt, until none is left."""
    return TaskSpec(topic, TOPICS[topic], seed).unique(
        half, lambda prompt: len(prompt) <= MAX_PROMPT_CHARACTERS
    )


def demo_problems(
    seed: int, clients: int, private_size: int = 400, public_size: int = 240, test_size: int = 640
) -> Split:
    """Draw the demo's sets, none of which shares a prompt with another or with pretraining.

    The public and test sets hold the topics in equal parts; each client's private set of
    `private_size` problems follows its own mixture (`dirichlet_split`).

    Raises InvalidSettings if a topic has too few distinct prompts.
    """
    total = clients * private_size + public_size + test_size
    streams = {topic: unique_problems(topic, seed, "demo") for topic in TOPICS}
    # Take topics in turn, so that any contiguous part is as balanced as possible.
    drawn: list[Problem] = []
    while len(drawn) < total:
        for topic, stream in streams.items():
            record = next(stream, None)
            if record is None:
                raise InvalidSettings(
                    f"{clients} clients are too many for the demo: for {total} problems in all, "
                    f"{topic} has too few different ones."
                )
            drawn.append(Problem(**record))
    test, public = drawn[:test_size], drawn[test_size : test_size + public_size]
    pool = drawn[test_size + public_size : total]
    parts = dirichlet_split([problem.topic for problem in pool], clients, ALPHA, seed)
    rng = random.Random(seed)  # noqa: S311 - a reproducible order, not a secret
    rng.shuffle(test)
    rng.shuffle(public)
    return Split([[pool[i] for i in part] for part in parts], public, test)

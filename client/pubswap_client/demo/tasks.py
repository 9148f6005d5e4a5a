"""The demo's problems: eight topics of reasoning-gym in sizes that a small model can learn.

The base model is pretrained on prompts of one half of a fixed two-way division of all prompts
(by the parity of the SHA-256 of the text), and the demo draws from the other half, so that no
private, public or test problem was ever shown to the base model with an answer.
"""

from collections.abc import Iterator
from typing import Any

from pubswap_client.data.tasks import Half, Record, TaskSpec
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


def unique_problems(topic: str, seed: int, half: Half) -> Iterator[Record]:
    """Yield this topic's problems of one half without repeating a prompt, until none is left."""
    return TaskSpec(topic, TOPICS[topic], seed).unique(
        half, lambda prompt: len(prompt) <= MAX_PROMPT_CHARACTERS
    )


def streams(seed: int) -> dict[str, Iterator[Problem]]:
    """Problems of each topic, from the half that the base model was not pretrained on."""
    records = {topic: unique_problems(topic, seed, "demo") for topic in TOPICS}
    return {topic: (Problem(**record) for record in found) for topic, found in records.items()}

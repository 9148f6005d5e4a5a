"""The demo's problems: eight topics of reasoning-gym in sizes that a small model can learn.

The base model is pretrained on prompts of one half of a fixed two-way division of all prompts
(by the parity of the SHA-256 of the text), and the demo draws from the other half, so that no
private, public or test problem was ever shown to the base model with an answer.
"""

import hashlib
import json
from collections.abc import Iterator
from typing import Any, Literal

from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers.reasoning import library

Record = dict[str, Any]
Half = Literal["pretraining", "demo"]

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


# reasoning-gym gives item i of seed s the generator Random(s + i): nearby seeds share items.
_SEED_STRIDE = 1_000_000
_MAX_MISSES = 500


def half_of(prompt: str) -> Half:
    """The half of all prompts that this one belongs to, by the parity of its SHA-256."""
    odd = hashlib.sha256(prompt.encode()).digest()[-1] % 2
    return "demo" if odd else "pretraining"


def records(topic: str, seed: int) -> Iterator[Record]:
    """This topic's problems, some repeated, as plain JSON with the keys of a problem file."""
    entries = library().create_dataset(
        topic, size=_SEED_STRIDE, seed=seed * _SEED_STRIDE, **TOPICS[topic]
    )
    for index in range(_SEED_STRIDE):
        entry = entries[index]
        yield {
            "id": f"{topic}-{seed}-{index}",
            "prompt": entry["question"].strip(),
            "answer": str(entry["answer"]),
            "topic": topic,
            "verifier": f"reasoning_gym:{topic}",
            "metadata": json.loads(json.dumps(entry["metadata"])),
        }


def unique_problems(topic: str, seed: int, half: Half) -> Iterator[Record]:
    """Yield this topic's problems of one half without repeating a prompt, until none is left."""
    seen: set[str] = set()
    misses = 0
    for record in records(topic, seed):
        prompt = record["prompt"]
        if prompt not in seen and half == half_of(prompt) and len(prompt) <= MAX_PROMPT_CHARACTERS:
            seen.add(prompt)
            misses = 0
            yield record
            continue
        misses += 1
        # So many misses in a row mean that the generator has run out of new prompts.
        if misses == _MAX_MISSES:
            return


def streams(seed: int) -> dict[str, Iterator[Problem]]:
    """Problems of each topic, from the half that the base model was not pretrained on."""
    found = {topic: unique_problems(topic, seed, "demo") for topic in TOPICS}
    return {topic: (Problem(**record) for record in rows) for topic, rows in found.items()}

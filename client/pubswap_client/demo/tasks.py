"""The demo's problems: eight topics of reasoning-gym in sizes that a small model can learn.

The base model is pretrained on prompts of one half of a fixed two-way division of all prompts
(by the parity of the SHA-256 of the text), and the demo draws from the other half, so that no
private, public or test problem was ever shown to the base model with an answer.
"""

import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pubswap_client.data.partition import dirichlet_split

Record = dict[str, Any]
Half = Literal["pretraining", "demo"]

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
    "leg_counting": {
        "min_animals": 2,
        "max_animals": 2,
        "min_instances": 1,
        "max_instances": 5,
    },
    "letter_counting": {"min_words": 2, "max_words": 2},
    "products": {"min_terms": 3, "max_terms": 3, "min_digits": 1, "max_digits": 1},
    "simple_equations": {"min_terms": 2, "max_terms": 2, "min_value": 1, "max_value": 9},
    "spell_backward": {"min_word_len": 4, "max_word_len": 6},
}
"""The topics, which are reasoning-gym task names, with the configuration of their generators."""

# reasoning-gym gives item i of seed s the generator Random(s + i): nearby seeds share items.
_SEED_STRIDE = 1_000_000
_MAX_MISSES = 500

MAX_PROMPT_CHARACTERS = 200
"""Longer prompts (rare, long words) are skipped, so that every prompt is cheap."""


@dataclass(frozen=True)
class DemoProblems:
    """Disjoint sets of problems: one private set for each client, a public one, a test one."""

    private: list[list[Record]]
    public: list[Record]
    test: list[Record]


def problems(topic: str, size: int, seed: int) -> list[Record]:
    """Generate `size` problems of one topic; the same arguments give the same records.

    A record has the keys id, prompt, answer, topic, verifier and metadata, and is plain JSON.
    Prompts may repeat; see `unique_problems`.

    Raises:
        ValueError: for a topic that is not in `TOPICS`, or a size or seed out of range.
    """
    if topic not in TOPICS:
        raise ValueError(f"unknown topic {topic!r}; there are {', '.join(TOPICS)}")
    if not 0 < size <= _SEED_STRIDE:
        raise ValueError(f"size must be between 1 and {_SEED_STRIDE}, not {size}")
    if seed < 0:
        raise ValueError(f"seed must not be negative, not {seed}")
    dataset = _dataset(topic, seed)
    return [_record(dataset, topic, seed, index) for index in range(size)]


def half_of(prompt: str) -> Half:
    """Tell which half of all prompts this one belongs to, by the parity of its SHA-256."""
    odd = hashlib.sha256(prompt.encode()).digest()[-1] % 2
    return "demo" if odd else "pretraining"


def unique_problems(topic: str, seed: int, half: Half) -> Iterator[Record]:
    """Yield this topic's problems of one half without repeating a prompt, until none is found."""
    dataset = _dataset(topic, seed)
    seen: set[str] = set()
    misses = 0
    for index in range(_SEED_STRIDE):
        record = _record(dataset, topic, seed, index)
        prompt = record["prompt"]
        if len(prompt) <= MAX_PROMPT_CHARACTERS and prompt not in seen and half_of(prompt) == half:
            seen.add(prompt)
            misses = 0
            yield record
            continue
        misses += 1
        # So long without news means that the generator's space of prompts is used up.
        if misses == _MAX_MISSES:
            return


def demo_problems(
    seed: int,
    clients: int,
    private_size: int,
    public_size: int,
    test_size: int,
    alpha: float = 0.3,
) -> DemoProblems:
    """Draw the demo's sets, none of which shares a prompt with another or with pretraining.

    The public and test sets hold the topics in equal parts; each client's private set of
    `private_size` problems follows its own mixture (`dirichlet_split` with this alpha).

    Raises:
        ValueError: when a size is impossible, or a topic has too few distinct prompts.
    """
    if min(clients, private_size, public_size, test_size) < 1:
        raise ValueError("every set must hold at least one problem, and there must be a client")
    total = clients * private_size + public_size + test_size
    streams = {topic: unique_problems(topic, seed, "demo") for topic in TOPICS}
    # Taken topic by topic in turn, so that any run of them is as balanced as it can be.
    drawn: list[Record] = []
    while len(drawn) < total:
        for topic, stream in streams.items():
            record = next(stream, None)
            if record is None:
                raise ValueError(f"{topic} has too few distinct problems for {total} in all")
            drawn.append(record)
    test, public = drawn[:test_size], drawn[test_size : test_size + public_size]
    pool = drawn[test_size + public_size : total]
    parts = dirichlet_split([record["topic"] for record in pool], clients, alpha, seed)
    rng = random.Random(seed)  # noqa: S311 - a reproducible order, not a secret
    rng.shuffle(test)
    rng.shuffle(public)
    return DemoProblems([[pool[i] for i in part] for part in parts], public, test)


def _dataset(topic: str, seed: int) -> Any:
    import reasoning_gym  # imports every one of its generators, which takes seconds

    return reasoning_gym.create_dataset(
        topic, size=_SEED_STRIDE, seed=seed * _SEED_STRIDE, **TOPICS[topic]
    )


def _record(dataset: Any, topic: str, seed: int, index: int) -> Record:
    entry = dataset[index]
    return {
        "id": f"{topic}-{seed}-{index}",
        "prompt": entry["question"].strip(),
        "answer": str(entry["answer"]),
        "topic": topic,
        "verifier": f"reasoning_gym:{topic}",
        "metadata": json.loads(json.dumps(entry["metadata"])),
    }

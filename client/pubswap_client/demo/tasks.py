"""The demo's problems: eight topics of reasoning-gym in sizes that a small model can learn.

The base model is pretrained on prompts of one half of a fixed two-way division of all prompts
(by the parity of the SHA-256 of the text), and the demo draws from the other half, so that no
private, public or test problem was ever shown to the base model with an answer.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pubswap_client.data.drawing import dirichlet_split
from pubswap_client.data.tasks import SEED_STRIDE, Half, Record, TaskSpec
from pubswap_protocol.problems import Problem, write_problems

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
    if not 0 < size <= SEED_STRIDE:
        raise ValueError(f"size must be between 1 and {SEED_STRIDE}, not {size}")
    if seed < 0:
        raise ValueError(f"seed must not be negative, not {seed}")
    task = TaskSpec(topic, TOPICS[topic], seed)
    return [task.record(index) for index in range(size)]


def unique_problems(topic: str, seed: int, half: Half) -> Iterator[Record]:
    """Yield this topic's problems of one half without repeating a prompt, until none is found."""
    return TaskSpec(topic, TOPICS[topic], seed).unique(
        half, lambda prompt: len(prompt) <= MAX_PROMPT_CHARACTERS
    )


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


PRIVATE_SIZE = 400
PUBLIC_SIZE = 240
TEST_SIZE = 640
ALPHA = 0.3


@dataclass(frozen=True)
class DemoData:
    """Where the demo's files are; `private` is by client name."""

    private: dict[str, Path]
    public: Path
    test: Path


def write_data(folder: Path, clients: Sequence[str], seed: int) -> DemoData:
    """Draw and write the sets: topics Dirichlet(0.3) over the clients, equal sizes."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = demo_problems(seed, len(clients), PRIVATE_SIZE, PUBLIC_SIZE, TEST_SIZE, ALPHA)
    return DemoData(
        private={
            name: _write(folder / f"{name}.jsonl", records)
            for name, records in zip(clients, drawn.private, strict=True)
        },
        public=_write(folder / "public.jsonl", drawn.public),
        test=_write(folder / "test.jsonl", drawn.test),
    )


def _write(path: Path, records: Iterable[Record]) -> Path:
    write_problems(path, [Problem(**record) for record in records])
    return path.resolve()

"""The demo's problems."""

import itertools
import json
import operator
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest

from pubswap_client.data.drawing import Split
from pubswap_client.data.spec import SplitSizes
from pubswap_client.demo.demos import REAL, TINY, Demo
from pubswap_client.demo.questions import KINDS
from pubswap_client.demo.tasks import TOPICS, Record, half_of, records, unique_problems
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.verifiers.reasoning import library

TOPIC_NAMES = sorted(TOPICS)


def drawn_from(demo: Demo, sizes: tuple[int, int, int], seed: int = 0, clients: int = 4) -> Split:
    """A demo's sets with so many private problems of each client, public and test problems."""
    return replace(demo, sizes=SplitSizes(*sizes)).split(seed, clients)


def problems(topic: str, size: int, seed: int) -> list[Record]:
    """The first problems of a topic, with possible repetitions."""
    return list(islice(records(topic, seed), size))


@pytest.mark.parametrize("topic", TOPIC_NAMES)
def test_verifier_accepts_own_answers_and_nothing_else(topic: str) -> None:
    """Every record's own answer scores 1, and a wrong one scores less."""
    score = library().get_score_answer_fn(topic)
    for record in problems(topic, 50, 3):
        assert score(record["answer"], record) == 1.0
        assert score(record["answer"] + "1", record) < 1.0


@pytest.mark.parametrize("topic", TOPIC_NAMES)
def test_records_are_plain_and_reproducible(topic: str) -> None:
    """Records survive JSON, have unique ids and depend only on the arguments."""
    records = problems(topic, 30, 7)
    assert json.loads(json.dumps(records)) == records
    assert problems(topic, 30, 7) == records
    assert problems(topic, 20, 7) == records[:20]
    assert len({record["id"] for record in records}) == 30
    assert set(records[0]) == {"id", "prompt", "answer", "topic", "verifier", "metadata"}
    assert {record["verifier"] for record in records} == {f"reasoning_gym:{topic}"}


@pytest.mark.parametrize("topic", TOPIC_NAMES)
def test_neighbouring_seeds_share_no_items(topic: str) -> None:
    """Seed s + 1 is not seed s shifted by one item, unlike in reasoning-gym itself."""
    first, second = problems(topic, 20, 1), problems(topic, 20, 2)
    assert [r["prompt"] for r in first[1:]] != [r["prompt"] for r in second[:-1]]


@pytest.mark.parametrize("topic", TOPIC_NAMES)
def test_pretraining_and_demo_prompts_are_disjoint(topic: str) -> None:
    """No prompt is in both halves, whatever the seeds, and neither half is empty."""
    shown = {r["prompt"] for r in islice(unique_problems(topic, 5, "pretraining"), 200)}
    asked = {r["prompt"] for r in islice(unique_problems(topic, 6, "demo"), 200)}
    assert len(shown) == len(asked) == 200
    assert not shown & asked
    assert {half_of(prompt) for prompt in shown} == {"pretraining"}


def test_demo_sets_are_disjoint_and_of_the_sizes_asked() -> None:
    """The demo's sets have the requested sizes, and share no prompt or id."""
    drawn = drawn_from(TINY, (60, 40, 64))
    sets = [*drawn.private, drawn.public, drawn.test]
    assert [len(part) for part in sets] == [60, 60, 60, 60, 40, 64]
    everything = [problem for part in sets for problem in part]
    assert len({problem.id for problem in everything}) == len(everything)
    assert len({problem.prompt for problem in everything}) == len(everything)
    assert {half_of(problem.prompt) for problem in everything} == {"demo"}


def test_public_and_test_sets_are_balanced() -> None:
    """Both contain equally many problems of each topic."""
    drawn = drawn_from(TINY, (8, 40, 64), clients=2)
    assert Counter(p.topic for p in drawn.public) == dict.fromkeys(TOPICS, 5)
    assert Counter(p.topic for p in drawn.test) == dict.fromkeys(TOPICS, 8)


def test_demo_is_a_function_of_its_seed() -> None:
    """The same seed gives the same sets, and another seed gives others."""
    for demo in (TINY, REAL):
        first = drawn_from(demo, (16, 8, 8), seed=1)
        assert first == drawn_from(demo, (16, 8, 8), seed=1)
        assert first != drawn_from(demo, (16, 8, 8), seed=2)


def test_the_real_models_questions_are_right_and_asked_once() -> None:
    """Each question's numbers give its answer, by arithmetic of this test."""
    drawn = REAL.split(3, 4)
    everything = [*itertools.chain(*drawn.private), *drawn.public, *drawn.test]
    assert len({problem.prompt for problem in everything}) == len(everything)
    rules = {
        "sum": operator.add,
        "difference": operator.sub,
        "product": operator.mul,
        "quotient": operator.truediv,
    }
    assert {problem.topic for problem in everything} == set(KINDS)
    for problem in everything:
        numbers = [int(word) for word in re.findall(r"\d+", problem.prompt)]
        assert int(problem.answer) == rules[problem.topic](*numbers)


def test_too_many_clients_are_refused() -> None:
    """A topic has only so many different problems."""
    with pytest.raises(InvalidSettings, match=r"4 clients are too many.*products"):
        drawn_from(TINY, (5000, 8, 8))


def test_reasoning_gym_works_without_the_one_dependency_that_needs_a_c_compiler():
    """Without pycosat, only the task that uses it as a solver is missing."""
    script = (
        "import sys\n"
        "sys.modules['pycosat'] = None\n"
        "from pubswap_protocol.errors import InvalidSettings\n"
        "from pubswap_protocol.verifiers.reasoning import library\n"
        "print(library().create_dataset('chain_sum', size=1, seed=0)[0]['question'])\n"
        "try:\n"
        "    library().create_dataset('zebra_puzzles', size=1, seed=0)[0]\n"
        "except InvalidSettings as error:\n"
        "    print(error.detail)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "+" in done.stdout or "-" in done.stdout
    assert "pip install pycosat" in done.stdout

"""The exchange's rules, checked by brute force over random pools."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from pubswap_protocol.methods.strategies import STRATEGIES, Choice, Keep, Pool
from support.coordinator.exchanging import exchange

CLIENTS = ("a", "b", "c", "d")


def random_pool(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Verdicts (P, K) of 1 to 4 clients, from all wrong to all right."""
    prompts, half = int(rng.integers(1, 4)), int(rng.integers(1, 5))
    share = rng.random()
    names = CLIENTS[: int(rng.integers(1, 5))]
    return {name: rng.random((prompts, 2 * half)) < share for name in names}


def check_keep(own: np.ndarray, pool: dict[str, np.ndarray], me: str, group: list[Choice]) -> None:
    """Every condition of the paper's rule, restated plainly."""
    size, right = len(own), int(own.sum())
    available = sum(int(verdicts.sum()) for name, verdicts in pool.items() if name != me)
    foreign = [choice for choice in group if choice.client != me]
    expected = 0 if right >= size / 2 else min(size // 2 - right, available)
    assert len(group) == size
    assert len(foreign) == expected
    assert len({(choice.client, choice.index) for choice in group}) == size
    for place, choice in enumerate(group):
        if choice.client == me:
            assert choice.index == place
        else:
            assert not own[place]
            assert pool[choice.client][choice.index]


def test_keep_obeys_every_condition_of_the_paper() -> None:
    """Only wrong responses are replaced, only by peers' right ones, and only up to half."""
    rng = np.random.default_rng(0)
    for trial in range(1000):
        correct = random_pool(rng)
        prompts = list(range(len(correct["a"])))
        for me in correct:
            groups = exchange("keep", correct, me, trial, 1, 1, prompts)
            for place, group in enumerate(groups):
                pool = {name: verdicts[place] for name, verdicts in correct.items()}
                check_keep(pool[me], pool, me, group)
            again = exchange("keep", dict(reversed(correct.items())), me, trial, 1, 1, prompts)
            assert again == groups


def test_random_draws_k_different_responses_the_same_for_everyone() -> None:
    """It draws K of the N K responses, none twice, whoever the receiver is."""
    rng = np.random.default_rng(1)
    for trial in range(1000):
        correct = random_pool(rng)
        prompts = list(range(len(correct["a"])))
        groups = {me: exchange("random", correct, me, trial, 1, 1, prompts) for me in correct}
        first = next(iter(groups.values()))
        assert all(other == first for other in groups.values())
        for group in first:
            size = correct["a"].shape[1]
            assert len({(choice.client, choice.index) for choice in group}) == len(group) == size
            assert all(0 <= choice.index < correct[choice.client].shape[1] for choice in group)


@pytest.mark.parametrize("strategy", ["keep", "random"])
def test_draws_are_uniform(strategy: str) -> None:
    """Over many seeds every eligible response is drawn about equally often."""
    correct = {
        "a": np.zeros((1, 4), bool),
        "b": np.array([[True, True, False, True]]),
        "c": np.array([[False, True, True, False]]),
    }
    counts: Counter[tuple[str, int]] = Counter()
    places: Counter[int] = Counter()
    trials = 4000
    for seed in range(trials):
        (group,) = exchange(strategy, correct, "a", seed, 1, 1, [0])  # type: ignore[arg-type]
        for place, choice in enumerate(group):
            if strategy == "random" or choice.client != "a":
                counts[choice.client, choice.index] += 1
                places[place] += 1
    eligible = 12 if strategy == "random" else 5
    drawn = 4 if strategy == "random" else 2
    assert len(counts) == eligible
    expected = trials * drawn / eligible
    assert all(abs(count - expected) < 5 * expected**0.5 for count in counts.values())
    if strategy == "keep":
        assert all(abs(count - trials / 2) < 5 * (trials / 4) ** 0.5 for count in places.values())


def test_draws_depend_on_round_step_prompt_and_client() -> None:
    """Another key gives another draw; the same key always the same."""
    correct = {name: np.array([[False] * 8] * 2) for name in "ab"} | {"c": np.ones((2, 8), bool)}
    base = exchange("keep", correct, "a", 0, 1, 1, [3, 4])
    assert base == exchange("keep", correct, "a", 0, 1, 1, [3, 4])
    others = [
        exchange("keep", correct, "b", 0, 1, 1, [3, 4]),
        exchange("keep", correct, "a", 1, 1, 1, [3, 4]),
        exchange("keep", correct, "a", 0, 2, 1, [3, 4]),
        exchange("keep", correct, "a", 0, 1, 2, [3, 4]),
        exchange("keep", correct, "a", 0, 1, 1, [5, 6]),
    ]
    drawn = [[[c for c in g if c.client == "c"] for g in groups] for groups in [base, *others]]
    assert len({repr(groups) for groups in drawn}) == len(drawn)
    assert sum(choice.client != "a" for group in base for choice in group) == 8


def test_random_draws_depend_on_seed_round_step_and_prompt() -> None:
    """Two prompts of one step, and two steps of one round, draw differently."""
    correct = {name: np.zeros((1, 8), bool) for name in CLIENTS}
    keys = [(0, 1, 1, 3), (1, 1, 1, 3), (0, 2, 1, 3), (0, 1, 2, 3), (0, 1, 1, 4)]
    drawn = [exchange("random", correct, "a", s, r, k, [prompt]) for s, r, k, prompt in keys]
    assert len({repr(groups) for groups in drawn}) == len(keys)


@pytest.mark.parametrize("name", STRATEGIES.names)
def test_what_is_replaced_is_what_the_choices_say(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For all clients at once, with and without a limit of length; `keep` draws nothing."""
    rng, strategy = np.random.default_rng(4), STRATEGIES.read(name)
    for trial in range(300):
        correct = random_pool(rng)
        short = {name: rng.random(v.shape) < 0.7 for name, v in correct.items() if name in "ac"}
        pool = Pool(trial, 1, 1, range(len(correct["a"])), correct, short)
        expected = {
            me: sum(c.client != me for group in strategy.choices(pool, me) for c in group)
            for me in correct
        }
        for me, count in expected.items():
            gifts = strategy.gifts(pool, me)
            assert (me not in gifts, gifts.total()) == (True, count)
        with monkeypatch.context() as patch:
            if name == "keep":
                patch.setattr(Pool, "rng", None)
            assert strategy.replaced(replace(pool)) == expected


class Generous(Keep):
    """Everything of the last client, whatever it is."""

    name = "generous"

    def group(self, pool: Pool, position: int, receiver: str) -> list[Choice]:
        return pool.own(pool.clients[-1])


def test_no_strategy_gives_what_peers_may_not_get() -> None:
    """One's own responses take its places, and the counts are those of the groups."""
    correct = {name: np.ones((1, 4), bool) for name in ("a", "b")}
    may = np.array([[True, False, True, False]])
    pool = Pool(seed=0, round=1, public_step=1, prompts=[0], correct=correct, donatable={"b": may})
    [group] = Generous().choices(pool, "a")
    assert [choice.client for choice in group] == ["b", "a", "b", "a"]
    assert [choice.index for choice in group] == [0, 1, 2, 3]
    assert Generous().choices(pool, "b") == [pool.own("b")]
    assert Generous().replaced(pool) == {"a": 2, "b": 0}

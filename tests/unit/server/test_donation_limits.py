"""The limit of donation, checked by brute force over random pools."""

import hashlib

import numpy as np
import pytest

from pubswap_protocol.methods.strategies import Choice
from support.coordinator.exchanging import exchange

CLIENTS = "abcd"
# Digest of the draws below by the code before limits existed.
UNLIMITED = "84ae666d1e6b48ca2bc04420139e0f3d8f536468602752d5336f8c84a9e0cf91"


def pools(seed: int, trials: int) -> list[dict[str, np.ndarray]]:
    """Verdicts (P, K) of 1 to 4 clients."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(trials):
        prompts, half, share = int(rng.integers(1, 4)), int(rng.integers(1, 5)), rng.random()
        names = CLIENTS[: int(rng.integers(1, 5))]
        made.append({name: rng.random((prompts, 2 * half)) < share for name in names})
    return made


def check_groups(groups: list[list[Choice]], size: int) -> None:
    """K responses each, none twice."""
    for group in groups:
        assert len(group) == len(set(group)) == size


def test_without_limits_the_draws_are_what_they_always_were() -> None:
    """Bit for bit, so that a run from before the limits continues with the same groups."""
    digest = hashlib.sha256()
    for trial, correct in enumerate(pools(42, 300)):
        prompts = list(range(len(correct["a"])))
        for strategy in ("keep", "random"):
            for me in correct:
                groups = exchange(strategy, correct, me, trial, 1, 2, prompts)  # type: ignore[arg-type]
                plain = [[(c.client, c.index) for c in group] for group in groups]
                digest.update(repr(plain).encode())
    assert digest.hexdigest() == UNLIMITED


@pytest.mark.parametrize("strategy", ["keep", "random"])
def test_a_response_that_is_too_long_is_not_donated(strategy: str) -> None:
    """A peer's never is, the receiver's own stays, and `keep` draws among the others."""
    rng = np.random.default_rng(3)
    drawn = 0
    for trial, correct in enumerate(pools(1, 800)):
        prompts = list(range(len(correct["a"])))
        short = {name: rng.random(verdicts.shape) < 0.5 for name, verdicts in correct.items()}
        for me in correct:
            free = exchange(strategy, correct, me, trial, 1, 1, prompts)  # type: ignore[arg-type]
            groups = exchange(strategy, correct, me, trial, 1, 1, prompts, short)  # type: ignore[arg-type]
            check_groups(groups, correct["a"].shape[1])
            for position, group in enumerate(groups):
                given = [choice for choice in group if choice.client != me]
                assert all(short[choice.client][position][choice.index] for choice in given)
                drawn += len(given)
                if strategy == "random":
                    for choice, was in zip(group, free[position], strict=True):
                        fits = was.client == me or short[was.client][position][was.index]
                        assert (choice == was) == fits
                if strategy == "keep":
                    own = correct[me][position]
                    there = sum(
                        int((theirs[position] & short[name][position]).sum())
                        for name, theirs in correct.items()
                        if name != me
                    )
                    assert len(given) == min(max(0, len(own) // 2 - int(own.sum())), there)
    assert drawn > 1000

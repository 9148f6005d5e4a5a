"""The replay buffer of right responses, against plain lists."""

import numpy as np
import pytest

from pubswap_client.training import replay
from pubswap_client.training.replay import decode_buffer, encode_buffer, fill, remember
from pubswap_protocol.tensors.responses import NOBODY, UNVERIFIED, Response


def response(word: int, length: int = 2, donated: bool = False) -> Response:
    tokens = np.full(length, word, np.int32)
    return Response(tokens, np.full(length, -0.5, np.float32), donated, seed=word, donor=7)


def words(responses: list[Response]) -> list[int]:
    return [int(one.tokens[0]) for one in responses]


def by_hand(
    history: list[tuple[int, list[tuple[int, bool]]]], k: int
) -> tuple[dict[int, list[int]], list[int]]:
    """The buffer's content after a history of groups of (word, right), and the last group as
    filled.

    Finds kept words by walking back through the history, without a buffer.
    """
    kept: dict[int, list[int]] = {}
    for prompt in {prompt for prompt, _ in history}:
        seen: list[int] = []
        for there, group in reversed(history):
            if there == prompt:
                seen += [word for word, right in group if right and word not in seen]
        kept[prompt] = list(dict.fromkeys(seen))[: k // 2]
    prompt, last = history[-1]
    group = [word for word, _ in last]
    missing = k // 2 - sum(right for _, right in last)
    for word in kept[prompt]:
        wrong = [place for place, (_, right) in enumerate(last) if not right]
        open_ = [place for place in wrong if group[place] == last[place][0]]
        if missing > 0 and word not in [word for word, _ in last]:
            group[open_[-1]] = word
            missing -= 1
    return {prompt: words for prompt, words in kept.items() if words}, group


def test_groups_are_filled_as_a_plain_loop_does() -> None:
    """For random histories, the same responses are kept, newest first, and the same ones
    replaced.
    """
    rng = np.random.default_rng(0)
    filled = 0
    for _ in range(200):
        k, history = 2 * int(rng.integers(1, 4)), list[tuple[int, list[tuple[int, bool]]]]()
        kept: dict[int, list[Response]] = {}
        for _ in range(int(rng.integers(1, 12))):
            prompt = int(rng.integers(3))
            group = [(word := int(rng.integers(9)), word % 3 == 0) for _ in range(k)]
            history.append((prompt, group))
            responses = [response(word) for word, _ in group]
            rewards = [float(right) for _, right in group]
            kept = remember(kept, prompt, responses, rewards)
            found = fill(responses, rewards, kept.get(prompt, ()))
            wanted, last = by_hand(history, k)
            assert {prompt: words(of) for prompt, of in kept.items()} == wanted
            assert words(found) == last
            new = [one for one in found if one not in responses]
            assert all(one.donated and one.donor == NOBODY for one in new)
            assert all(one.seed == UNVERIFIED for one in new)
            filled += len(new)
            again = remember(kept, prompt, responses, rewards)
            assert words(again.get(prompt, [])) == words(kept.get(prompt, []))
    assert filled > 50


def test_the_least_recent_prompts_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The buffer never exceeds its tokens, even for one prompt's long responses."""
    monkeypatch.setattr(replay, "MAX_TOKENS", 15)
    kept: dict[int, list[Response]] = {}
    for prompt in (1, 2, 3, 1, 4):
        group = [response(prompt, 5), response(10 + prompt, 5)]
        kept = remember(kept, prompt, group, [1.0, 1.0])
        assert sum(len(one.tokens) for of in kept.values() for one in of) <= 15
    assert list(kept) == [3, 1, 4]
    assert remember(kept, 5, [response(5, 16)] * 2, [1.0, 1.0]) == {}


@pytest.mark.parametrize("kept", [{}, {4: [response(1), response(2, 3)], 0: [response(3)]}])
def test_a_buffer_comes_back_bit_for_bit(kept: dict[int, list[Response]]) -> None:
    """Prompts keep their order, responses are newest first, and all are marked as donated."""
    back = decode_buffer(encode_buffer(kept))
    assert list(back) == list(kept)
    for prompt, responses in kept.items():
        assert words(back[prompt]) == words(responses)
        for one, same in zip(back[prompt], responses, strict=True):
            assert one.donated and (one.tokens == same.tokens).all()
            assert (one.logprobs == same.logprobs).all()

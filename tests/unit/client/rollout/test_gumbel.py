"""Gumbel noise: against a slow reference, its distribution, and responses sampled with it."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from pubswap_client.policy.groups import Group, collate
from pubswap_client.policy.logprobs import response_logprobs
from pubswap_client.policy.policy import Policy
from pubswap_client.rollout.gumbel import gumbel_noise, gumbel_sample, murmur3
from pubswap_client.rollout.transformers_engine import SamplingParameters, TransformersEngine
from pubswap_protocol.draws import response_seed
from pubswap_protocol.tensors.responses import Response

PROMPTS = ([4, 13, 5, 17], [6, 7, 8, 9, 10, 11, 17], [5, 17])
EOS = 1
WORD = (1 << 32) - 1


def plain_murmur3(data: bytes) -> int:
    """MurmurHash3_x86_32 with seed 0, written from its published description, for whole words."""

    def rotated(word: int, bits: int) -> int:
        return (word << bits | word >> 32 - bits) & WORD

    mixed = 0
    for start in range(0, len(data), 4):
        word = int.from_bytes(data[start : start + 4], "little")
        mixed ^= rotated(word * 0xCC9E2D51 & WORD, 15) * 0x1B873593 & WORD
        mixed = (rotated(mixed, 13) * 5 + 0xE6546B64) & WORD
    mixed ^= len(data)
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B & WORD
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 & WORD
    return mixed ^ mixed >> 16


def plain_noise(seed: int, position: int, token: int) -> float:
    """The noise in Python's floats."""
    data = seed.to_bytes(8, "little") + position.to_bytes(4, "little")
    uniform = (plain_murmur3(data + token.to_bytes(4, "little")) + 0.5) / 2**32
    return -math.log(-math.log1p(-min(uniform, 1 - 2**-24)))


def keys(count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Seeds, positions and tokens over their whole ranges, including both ends."""
    rng = np.random.default_rng(5)
    drawn = [rng.integers(0, 1 << bits, count) for bits in (62, 20, 18)]
    drawn[0][:3] = 0, (1 << 62) - 1, 1 << 31
    drawn[2][:4] = 0, (1 << 31) - 1, 151_935, 1
    seeds, positions, tokens = (torch.from_numpy(values) for values in drawn)
    return seeds, positions, tokens


def test_the_hash_is_murmur3_of_seed_position_and_token() -> None:
    """Bit for bit, for any shapes and integer types; the reference itself gives published
    values.
    """
    assert plain_murmur3(b"") == 0
    assert plain_murmur3(b"\xff\xff\xff\xff") == 0x76293B50
    assert plain_murmur3(b"\x21\x43\x65\x87") == 0xF55B516B
    seeds, positions, tokens = keys(2000)
    triples = zip(seeds.tolist(), positions.tolist(), tokens.tolist(), strict=True)
    expected = [
        plain_murmur3(s.to_bytes(8, "little") + p.to_bytes(4, "little") + t.to_bytes(4, "little"))
        for s, p, t in triples
    ]
    assert (murmur3(seeds, positions, tokens).long() & WORD).tolist() == expected
    assert (murmur3(seeds, positions, tokens.int()).long() & WORD).tolist() == expected
    table = murmur3(seeds[:3, None], positions[:3, None], tokens[None, :50])
    alone = [murmur3(seeds[i], positions[i], tokens[:50]) for i in range(3)]
    assert torch.equal(table, torch.stack(alone))


def test_the_noise_equals_the_plain_reference() -> None:
    """Within float32's rounding, and never infinite."""
    seeds, positions, tokens = keys(2000)
    triples = zip(seeds.tolist(), positions.tolist(), tokens.tolist(), strict=True)
    expected = torch.tensor([plain_noise(*key) for key in triples])
    noise = gumbel_noise(seeds, positions, tokens)
    assert noise.dtype == torch.float32
    assert torch.allclose(noise, expected, rtol=1e-5, atol=1e-5)


def test_the_noise_is_gumbel_distributed() -> None:
    """Mean and variance match the distribution's, within four standard errors for 2^20 draws."""
    seeds = torch.arange(1024)[:, None] * 7919
    noise = gumbel_noise(seeds, torch.tensor(31), torch.arange(1024)).double()
    assert abs(noise.mean() - np.euler_gamma) < 4 * math.pi / math.sqrt(6) / 2**10
    assert abs(noise.var() - math.pi**2 / 6) < 4 * 2.7 / 2**10
    # The noise of neighbouring seeds or tokens is uncorrelated.
    flat = noise - noise.mean()
    for other in (flat[:, 1:] * flat[:, :-1], flat[1:] * flat[:-1]):
        assert abs(other.mean()) < 4 * math.pi**2 / 6 / 2**10


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_draws_follow_the_policys_distribution(temperature: float) -> None:
    """A chi-squared test over 40,000 draws with different seeds, and with different positions."""
    logits = torch.tensor([2.0, 0.0, -1.0, 1.0, -3.0])
    expected = 40_000 * (logits / temperature).softmax(dim=0)
    counter, fixed = torch.arange(40_000), torch.full((40_000,), 77)
    for seeds, positions in ((counter, fixed), (fixed, counter)):
        tokens = gumbel_sample(logits.expand(40_000, 5), temperature, seeds, positions)
        counts = torch.bincount(tokens, minlength=5)
        assert ((counts - expected) ** 2 / expected).sum() < 18.5  # 4 degrees of freedom: p = 0.001


def sampled(
    policy: Policy, prompts: Sequence[Sequence[int]] = PROMPTS, rows: int = 512, first: int = 0
) -> list[list[Response]]:
    engine = TransformersEngine(policy, rows)
    return engine.generate(prompts, SamplingParameters(4, 12, 0.7, 11, gumbel=True), first)


def tokens_of(groups: Sequence[Sequence[Response]]) -> list[list[list[int]]]:
    return [[response.tokens.tolist() for response in group] for group in groups]


def test_responses_do_not_depend_on_how_they_are_batched(policy: Policy) -> None:
    """Fewer rows at a time, or only some prompts, give the same responses."""
    whole = tokens_of(sampled(policy))
    assert len({tuple(response) for group in whole for response in group}) > 6
    assert tokens_of(sampled(policy, rows=3)) == whole
    assert tokens_of(sampled(policy, PROMPTS[1:], first=1)) == whole[1:]
    plain = TransformersEngine(policy).generate(PROMPTS, SamplingParameters(4, 12, 0.7, 11))
    assert tokens_of(plain) != whole


def test_every_token_is_the_argmax_with_the_noise_of_its_seed_and_position(policy: Policy) -> None:
    """With logits from the model's own pass; the reported log-probabilities are the policy's."""
    groups = sampled(policy)
    for prompt, (tokens, group) in enumerate(zip(PROMPTS, groups, strict=True)):
        for index, response in enumerate(group):
            ids = torch.tensor([[*tokens, *response.tokens.tolist()]])
            with torch.no_grad():
                logits = policy.model(input_ids=ids).logits[0, len(tokens) - 1 : -1]
            for step, (row, sent) in enumerate(zip(logits, response.tokens.tolist(), strict=True)):
                place = len(tokens) - 1 + step
                seed = response_seed(11, prompt, index)
                noise = [plain_noise(seed, place, token) for token in range(len(row))]
                assert int((row / 0.7 + torch.tensor(noise)).argmax()) == sent
    batch = collate([Group(p, g, [0.0] * 4) for p, g in zip(PROMPTS, groups, strict=True)])
    recomputed = response_logprobs(policy, batch, 0.7, budget=1 << 20)
    assert torch.allclose(batch.behaviour, recomputed, atol=1e-5)

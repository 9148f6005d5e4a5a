"""Evidence: negative for sampled responses and positive for others, in the update too."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from pubswap_client.policy.groups import Batch, Group, collate
from pubswap_client.policy.logprobs import score_pack
from pubswap_client.policy.packing import pack
from pubswap_client.policy.policy import Policy
from pubswap_client.rollout.gumbel import gumbel_sample
from pubswap_client.rollout.transformers_engine import SamplingParameters, TransformersEngine
from pubswap_client.training.evidence import (
    EvidenceTable,
    likeliest_of,
    response_evidence,
    token_evidence,
)
from pubswap_client.training.memory import TokenBudget
from pubswap_client.training.trainer import seeded
from pubswap_client.training.update import UpdateContext, update
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import Adapter
from pubswap_protocol.tensors.responses import Response
from pubswap_server.exchange.sampling import doubtful

PROMPTS = [[4 + p, 13, 5 + p, 17] for p in range(8)]
COUNT, LONGEST, TEMPERATURE, SEED = 16, 24, 0.7, 11
Groups = list[list[Response]]
Responses = Callable[[Policy], Groups]


def sampled(policy: Policy, seed: int = SEED, temperature: float = TEMPERATURE) -> Groups:
    engine = TransformersEngine(policy)
    return engine.generate(
        PROMPTS, SamplingParameters(COUNT, LONGEST, temperature, seed, gumbel=True)
    )


def batch_of(groups: Groups, seed: int = SEED) -> Batch:
    """A batch of responses that are claimed to be drawn with this seed."""
    claimed = seeded(groups, seed)
    rewards = [float(k % 2) for k in range(COUNT)]
    return collate([Group(p, g, rewards) for p, g in zip(PROMPTS, claimed, strict=True)])


def against(policy: Policy, groups: Groups) -> float:
    """The evidence against all responses, seen by this policy."""
    return float(response_evidence(policy, batch_of(groups), TEMPERATURE, budget=200).sum())


def drifted(adapter: Adapter, by: float, seed: int) -> Adapter:
    """An adapter near this one."""
    rng = np.random.default_rng(seed)
    return {
        name: factor + by * rng.standard_normal(factor.shape).astype(np.float32)
        for name, factor in adapter.items()
    }


def by_token(logits: torch.Tensor, tokens: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    """The evidence in each of these tokens, by logits / temperature (n, V)."""
    return token_evidence(*likeliest_of(logits, tokens), *others)


def test_evidence_is_a_likelihood_ratio() -> None:
    """Over tokens from other noise, the mean of sampled / other is 1 for each draw of the noise.

    On average the evidence favours the truth, also for a policy nearby.
    """
    torch.manual_seed(0)
    count, words = 5000, 20
    for spread in (0.3, 1.0, 3.0):
        logits = torch.randn(count, words) * spread
        seeds, positions = torch.arange(count), torch.full((count,), 9)

        def found(sent: torch.Tensor) -> torch.Tensor:
            return by_token(logits, sent, seeds, positions)  # noqa: B023

        all_words = [found(torch.full((count,), word)) for word in range(words)]
        sampled = logits.softmax(dim=1) * torch.stack(all_words, dim=1).neg().exp()  # (n, V)
        assert sampled.sum(dim=1).numpy() == pytest.approx(1, abs=1e-3)
        assert float(found(gumbel_sample(logits, 1.0, seeds, positions + 1)).mean()) > 0
        for by in (0.0, 0.2):
            theirs = logits + by * torch.randn_like(logits)
            assert float(found(gumbel_sample(theirs, 1.0, seeds, positions)).mean()) < 0


def test_the_evidence_against_a_response_is_that_it_was_not_sampled_to_its_end(
    policy: Policy,
) -> None:
    """The mean over all positions after which other noise may be used, of the tokens' ratios."""
    batch = batch_of(replayed(policy))
    found = response_evidence(policy, batch, TEMPERATURE, budget=200)
    table, rows = EvidenceTable(batch, range(batch.rows), policy.device), range(batch.rows)
    part = pack(batch, rows, policy.device)
    with torch.no_grad(), policy.packed():
        score_pack(policy, part, TEMPERATURE, observe=table.observer(part, rows))
    for row, tokens in enumerate(table.tensors[0].view(batch.rows, -1).tolist()):
        count = batch.lengths[row]
        mean = statistics.mean(math.exp(sum(tokens[place:count])) for place in range(count + 1))
        assert float(found[row]) == pytest.approx(math.log(mean), abs=1e-3)


def test_a_sent_token_counts_even_if_it_is_not_among_the_likeliest() -> None:
    """Among more than 64 tokens, the sent token always counts, whatever its rank."""
    logits = torch.linspace(5, -5, 200)[None]
    seed, position, token = torch.tensor([3]), torch.tensor([1]), torch.tensor([199])
    assert 1 < float(by_token(logits, token, seed, position)) < 5  # no single token decides
    best = torch.full_like(logits, -9)
    best[0, 199] = 40
    assert float(by_token(best, token, seed, position)) == pytest.approx(0, abs=1e-4)


def replayed(policy: Policy) -> Groups:
    return sampled(policy, seed=12)


def greedy(policy: Policy) -> Groups:
    return sampled(policy, temperature=1e-4)


def written(policy: Policy) -> Groups:
    """The same text for every prompt."""
    tokens = np.array([20, 21, 22, 23, 24, 1], np.int32)
    return [[Response(tokens, np.zeros(6, np.float32))] * COUNT for _ in PROMPTS]


def half_rewritten(policy: Policy) -> Groups:
    """The first halves of sampled responses with second halves of others."""

    def mixed(one: Response, other: Response) -> Response:
        half = max(1, len(one.tokens) // 2)
        tokens = np.concatenate([one.tokens[:half], other.tokens[half:]])
        return Response(tokens, np.zeros(len(tokens), np.float32))

    pairs = zip(sampled(policy), replayed(policy), strict=True)
    return [[mixed(*both) for both in zip(*each, strict=True)] for each in pairs]


def best_of_eight(policy: Policy) -> Groups:
    """The draw out of eight with the largest sum of tokens, as if that were the right one."""
    draws = [sampled(policy, seed=SEED + number) for number in range(8)]
    return [
        [max((draw[p][k] for draw in draws), key=lambda r: r.tokens.sum()) for k in range(COUNT)]
        for p in range(len(PROMPTS))
    ]


ATTACKS = [written, best_of_eight, half_rewritten, greedy, replayed]


def test_what_another_policy_nearby_has_sampled_is_not_doubted(policy: Policy) -> None:
    """Nor are our own responses."""
    own = policy.adapter()
    honest = sampled(policy)
    assert doubtful(128, against(policy, honest)) is False
    for seed in range(3):
        policy.load_adapter(drifted(own, 0.02, seed))
        assert doubtful(128, against(policy, honest)) is False


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_what_was_not_sampled_is_doubted(policy: Policy, attack: Responses) -> None:
    """Even by a receiver with another policy than the donor's."""
    groups = attack(policy)
    policy.load_adapter(drifted(policy.adapter(), 0.02, seed=0))
    assert doubtful(128, against(policy, groups)) is True


def donated(groups: Groups, rows: Sequence[int]) -> Batch:
    """A batch in which these rows come from donors 5 and 6."""
    batch = batch_of(groups)
    flags, donors = torch.zeros(batch.rows, dtype=torch.bool), torch.zeros(batch.rows).long()
    for row in rows:
        flags[row], donors[row] = True, 5 + row % 2
    return replace(batch, donated=flags, donors=donors)


@pytest.mark.parametrize("tokens", [1 << 20, 60])
def test_the_update_finds_the_evidence_in_its_own_pass(
    policy: Policy, run_settings: RunSettings, tokens: int
) -> None:
    """For donated rows with a seed, by donor, whatever the packs; the update itself does not
    change.
    """
    start = policy.adapter()
    groups, rows = replayed(policy), [1, 2, 3, 17, 40]
    evidence = response_evidence(policy, batch_of(groups), TEMPERATURE, budget=200)
    batch = donated(groups, rows)
    adapters = []
    for seeds in (batch.seeds, torch.full_like(batch.seeds, -1)):
        policy.load_adapter(start)
        optimizer = torch.optim.SGD(policy.trainable(), lr=0.1)
        context = UpdateContext(policy, TokenBudget(tokens))
        metrics = update(context, optimizer, replace(batch, seeds=seeds), [])
        adapters.append(policy.adapter())
        if seeds is batch.seeds:
            found = metrics.donors
    assert metrics.donors == {}
    assert sorted(found) == ["5", "6"]
    for donor, mine in (("5", [2, 40]), ("6", [1, 3, 17])):
        assert found[donor] == pytest.approx([len(mine), float(evidence[mine].sum())], rel=1e-3)
    assert all(np.array_equal(adapters[0][name], adapters[1][name]) for name in start)

"""Evidence: negative for sampled responses and positive for others, in the update too."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from pubswap_client.policy.groups import Batch, Group, collate
from pubswap_client.policy.logprobs import response_logprobs, score_pack
from pubswap_client.policy.packing import pack
from pubswap_client.policy.policy import Policy
from pubswap_client.rollout.gumbel import gumbel_noise, gumbel_sample
from pubswap_client.rollout.transformers_engine import SamplingParameters, TransformersEngine
from pubswap_client.training.evidence import (
    DRIFT,
    FARTHER,
    KINDS,
    NEAR,
    EvidenceTable,
    calibrated,
    combined,
    either,
    likeliest_of,
    response_evidence,
    token_evidence,
)
from pubswap_client.training.memory import TokenBudget
from pubswap_client.training.trainer import seeded
from pubswap_client.training.update import update
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
    return collate([Group(p, g, rewards) for p, g in zip(PROMPTS, claimed, strict=True)], 1e-6)


def against(policy: Policy, groups: Groups) -> float:
    """The larger of the two kinds of evidence against all responses, seen by this policy."""
    found = response_evidence(policy, batch_of(groups), TEMPERATURE, budget=200).sums()
    return max(combined(*found.sum(dim=0).tolist()))


def drifted(adapter: Adapter, by: float, seed: int) -> Adapter:
    """An adapter near this one."""
    rng = np.random.default_rng(seed)
    return {
        name: factor + by * rng.standard_normal(factor.shape).astype(np.float32)
        for name, factor in adapter.items()
    }


def said(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The log-probabilities that an honest donor with these logits claims."""
    return logits.log_softmax(dim=1).gather(1, tokens[:, None])[:, 0]


def by_token(logits: torch.Tensor, tokens: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    """The evidence in each of these tokens, by logits / temperature (n, V)."""
    return token_evidence(*likeliest_of(logits, tokens), *others)


def test_evidence_is_a_likelihood_ratio() -> None:
    """Over tokens from other noise, the mean of sampled / other is 1 for each draw of the noise, by
    claims and by our own policy; over sampled tokens, so are the means for hotter and colder
    sampling.

    This holds for any two distributions; on average the evidence favours the truth.
    """
    torch.manual_seed(0)
    count, words = 5000, 20
    for spread in (0.3, 1.0, 3.0):
        logits = torch.randn(count, words) * spread
        seeds, positions = torch.arange(count), torch.full((count,), 9)

        def found(sent: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
            return by_token(logits, sent, said(theirs, sent), seeds, positions)  # noqa: B023

        all_words = [found(torch.full((count,), word), logits) for word in range(words)]
        claimed, own, hotter, colder, apart = torch.stack(all_words, dim=2)  # (n, V) each
        drawn, guessed = (logits.softmax(dim=1) * each.neg().exp() for each in (claimed, own))
        for each in (drawn, guessed, drawn * hotter.exp(), drawn * colder.exp()):
            assert each.sum(dim=1).numpy() == pytest.approx(1, abs=1e-3)
        assert float(apart.max()) <= 1 + 1e-4  # the same claims have no distance
        other = gumbel_sample(logits, 1.0, seeds, positions + 1)
        assert float(found(other, logits)[:2].mean(dim=1).min()) > 0
        for by in (0.0, 0.2):
            theirs = logits + by * torch.randn_like(logits)
            near = gumbel_sample(theirs, 1.0, seeds, positions)
            assert float(found(near, theirs)[:4].mean(dim=1).max()) < 0
        for temperature, kind in ((1.5, "hotter"), (0.5, "colder")):
            sent = gumbel_sample(logits, temperature, seeds, positions)
            assert float(found(sent, logits)[KINDS.index(kind)].mean()) > 0


def test_a_donor_s_claims_replace_our_own_logits() -> None:
    """A donor whose policy differs from ours, and claims so, is judged by its own policy."""
    torch.manual_seed(1)
    theirs = torch.randn(5000, 2)
    ours = theirs + 1.5 * torch.randn_like(theirs)
    seeds, positions = torch.arange(5000), torch.zeros(5000, dtype=torch.int64)
    sent = gumbel_sample(theirs, 1.0, seeds, positions)
    claimed, own, *_ = by_token(ours, sent, said(theirs, sent), seeds, positions).mean(dim=1)
    exact, _, *_ = by_token(theirs, sent, said(theirs, sent), seeds, positions).mean(dim=1)
    assert float(claimed) == pytest.approx(float(exact), abs=1e-4)  # all is known of two tokens
    assert claimed < own - 0.1


def farther(distance: float, near: float = NEAR) -> float:
    """Log-likelihood ratio of a distance in log-odds: another policy against one of this round."""
    laplace = [math.exp(-distance / b) / (2 * b) for b in (FARTHER * near, near)]
    return math.log(laplace[0] / laplace[1])


def test_distances_are_differences_of_log_odds() -> None:
    """It is 0 if both are certain, and bounded for impossible claims."""
    ours = torch.tensor([0.5, 0.5, 0.99, 0.5, 0.5, 0.5])
    claims = torch.tensor([0.5, 0.9, 0.999, 1.0, 0.0, 0.02]).log()
    logits = torch.stack([ours.log(), (1 - ours).log()], dim=1)
    zeros = torch.zeros(6, dtype=torch.int64)
    found = by_token(logits, zeros, claims, zeros, zeros)[KINDS.index("apart")]
    expected = [1.0, 1 + math.log(9), 0.0, 7.0, 7.0, 1 + math.log(49)]
    assert found.tolist() == pytest.approx(expected, abs=1e-4)


def test_the_scale_is_the_median_donor_s() -> None:
    """The nearer of two, so that one donor cannot shift it; and never below NEAR."""
    assert calibrated([2.0, 9.0, 3.0]) == 3.0
    assert calibrated([2.0, 9.0]) == 2.0
    assert calibrated([0.1, 0.2, 9.0]) == NEAR
    assert calibrated([5.0]) == NEAR


def test_policies_that_drifted_far_are_not_doubted_if_most_did(policy: Policy) -> None:
    """Our own policy is then the outlier, and only a donor that is much farther away is suspect."""
    own = policy.adapter()
    drawn = []
    for seed, by in ((1, 0.12), (2, 0.12), (3, 0.12), (4, 6.0)):
        policy.load_adapter(drifted(own, by, seed))
        drawn.append(sampled(policy))
    policy.load_adapter(own)
    tables = [response_evidence(policy, batch_of(each), TEMPERATURE, 1 << 16) for each in drawn]
    rows = range(len(PROMPTS) * COUNT)
    scales = [scale for table in tables for scale in table.scales([rows])]
    assert min(scales) > NEAR
    near = calibrated(scales)
    at_first = [max(combined(*table.sums().sum(dim=0).tolist())) for table in tables]
    found = [max(combined(*table.sums(near).sum(dim=0).tolist())) for table in tables]
    assert max(at_first[:3]) > 0
    assert max(found[:3]) < 0 < found[3]


def test_the_evidence_against_a_response_is_that_it_was_not_sampled_to_its_end(
    policy: Policy,
) -> None:
    """The mean over all positions after which other noise may be used, of the tokens' ratios;
    evidence for another policy is their sum.
    """
    batch = batch_of(replayed(policy))
    found = response_evidence(policy, batch, TEMPERATURE, budget=200).sums()
    table, rows = EvidenceTable(batch, range(batch.rows), policy.device), range(batch.rows)
    part = pack(batch, rows, policy.device)
    with torch.no_grad(), policy.packed():
        score_pack(policy, part, TEMPERATURE, observe=table.observer(part, rows))
    claimed, own, hotter, colder, apart = table.tensors[0].view(len(KINDS), batch.rows, -1).tolist()
    for row, count in enumerate(batch.lengths):
        means = [
            statistics.mean(math.exp(sum(each[row][place:count])) for place in range(count + 1))
            for each in (claimed, own)
        ]
        expected = [math.log(means[0]), math.log(means[1]) - DRIFT]
        expected += [sum(each[row][:count]) for each in (hotter, colder)]
        expected.append(sum(farther(one - 1) for one in apart[row][:count] if one))
        assert found[row].tolist() == pytest.approx(expected, abs=1e-3)


def test_any_of_some_hypotheses_is_found_at_the_cost_of_their_number() -> None:
    """The result is the mean of the ratios, even where exp would overflow."""
    assert either(-2.0, -2.0) == -2.0
    assert either(1.0, -1.0) == pytest.approx(math.log(math.cosh(1.0)))
    for three in ((5000.0, -5000.0, 0.0), (-5000.0, 0.0, 5000.0)):
        assert either(*three) == pytest.approx(5000 - math.log(3))


def test_a_sent_token_counts_even_if_it_is_not_among_the_likeliest() -> None:
    """Among more than 64 tokens, the sent token always counts, whatever its rank."""
    logits = torch.linspace(5, -5, 200)[None]
    seed, position, token = torch.tensor([3]), torch.tensor([1]), torch.tensor([199])
    found = by_token(logits, token, said(logits, token), seed, position)[:2]
    assert float(found.min()) > 1 and float(found.max()) < 5  # no single token decides
    best = torch.full_like(logits, -9)
    best[0, 199] = 40
    found = by_token(best, token, said(best, token), seed, position)
    assert found.flatten().tolist() == pytest.approx([0] * len(KINDS), abs=1e-4)


@pytest.mark.parametrize("claim", [0.0, -1e30, -3.4e38])
def test_no_claim_makes_the_evidence_infinite(claim: float) -> None:
    """The protocol only requires log-probabilities to be finite."""
    torch.manual_seed(0)
    logits, tokens = torch.randn(50, 80) * 5, torch.arange(50)
    claims = torch.full((50,), claim)
    found = by_token(logits, tokens, claims, torch.arange(50), tokens)
    assert bool(found.isfinite().all()) and float(found.abs().max()) < 300


def replayed(policy: Policy) -> Groups:
    return sampled(policy, seed=12)


def greedy(policy: Policy) -> Groups:
    return sampled(policy, temperature=1e-4)


def written(policy: Policy) -> Groups:
    """The same text for every prompt, claimed with certainty."""
    tokens = np.array([20, 21, 22, 23, 24, 1], np.int32)
    return [[Response(tokens, np.zeros(6, np.float32))] * COUNT for _ in PROMPTS]


def written_with_care(policy: Policy) -> Groups:
    """The same text with its true log-probabilities."""
    return told(policy, written(policy))


def told(policy: Policy, groups: Groups) -> Groups:
    """The responses with this policy's log-probabilities."""
    batch = batch_of(groups)
    logprobs = iter(response_logprobs(policy, batch, TEMPERATURE, 1 << 16).numpy())
    return [[replace(one, logprobs=next(logprobs)[: len(one.tokens)]) for one in g] for g in groups]


def forged(policy: Policy) -> Groups:
    """Drawn with other noise; claims the least log-probability for which the right noise picks each
    token.
    """
    batch, groups = batch_of(replayed(policy)), replayed(policy)
    needed = []

    def noting(place: slice, logits: torch.Tensor) -> None:
        needed.append(logits.log_softmax(dim=1))

    part = pack(batch, range(batch.rows), policy.device)
    with torch.no_grad(), policy.packed():
        score_pack(policy, part, TEMPERATURE, observe=noting)
    logits, at, sent = torch.cat(needed), 0, []
    for row, response in enumerate(one for group in groups for one in group):
        end = at + len(response.tokens)
        tokens = torch.from_numpy(response.tokens).long()
        before = batch.prompt_lengths[row // COUNT] - 1
        places = torch.arange(before, before + end - at)[:, None]
        words = torch.arange(logits.shape[1])[None]
        noised = logits[at:end] + gumbel_noise(batch.seeds[row].expand(end - at, 1), places, words)
        short = noised.amax(dim=1) - noised.gather(1, tokens[:, None])[:, 0] + 0.01
        raised = logits[at:end].scatter_add(1, tokens[:, None], short.clamp(min=0)[:, None])
        sent.append(replace(response, logprobs=said(raised, tokens).numpy()))
        at = end
    return [sent[p * COUNT : (p + 1) * COUNT] for p in range(len(PROMPTS))]


def half_rewritten(policy: Policy) -> Groups:
    """The first halves of sampled responses with second halves of others."""

    def mixed(one: Response, other: Response) -> Response:
        half = max(1, len(one.tokens) // 2)
        tokens = np.concatenate([one.tokens[:half], other.tokens[half:]])
        return Response(tokens, np.zeros(len(tokens), np.float32))

    pairs = zip(sampled(policy), replayed(policy), strict=True)
    return told(policy, [[mixed(*both) for both in zip(*each, strict=True)] for each in pairs])


def best_of_eight(policy: Policy) -> Groups:
    """The draw out of eight with the largest sum of tokens, as if that were the right one."""
    draws = [sampled(policy, seed=SEED + number) for number in range(8)]
    return [
        [max((draw[p][k] for draw in draws), key=lambda r: r.tokens.sum()) for k in range(COUNT)]
        for p in range(len(PROMPTS))
    ]


def another_adapter(policy: Policy) -> Groups:
    own = policy.adapter()
    policy.load_adapter(drifted(own, 1.0, seed=9))
    groups = sampled(policy)
    policy.load_adapter(own)
    return groups


def colder(policy: Policy) -> Groups:
    return sampled(policy, temperature=0.4)


def hotter(policy: Policy) -> Groups:
    return sampled(policy, temperature=1.0)


ATTACKS = [
    *(written, written_with_care, best_of_eight, half_rewritten, greedy, replayed, forged),
    *(another_adapter, colder, hotter),
]


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
    evidence = response_evidence(policy, batch_of(groups), TEMPERATURE, budget=200).sums()
    batch = donated(groups, rows)
    adapters = []
    for seeds in (batch.seeds, torch.full_like(batch.seeds, -1)):
        policy.load_adapter(start)
        optimizer = torch.optim.SGD(policy.trainable(), lr=0.1)
        metrics = update(
            *(policy, optimizer, replace(batch, seeds=seeds), run_settings, []),
            TokenBudget(tokens),
        )
        adapters.append(policy.adapter())
        if seeds is batch.seeds:
            found = metrics.donors
    assert metrics.donors == {}
    assert sorted(found) == ["5", "6"]
    for donor, mine in (("5", [2, 40]), ("6", [1, 3, 17])):
        sums = [len(mine), *evidence[mine].sum(dim=0).tolist()]
        assert found[donor] == pytest.approx(sums, rel=1e-3)
    assert all(np.array_equal(adapters[0][name], adapters[1][name]) for name in start)

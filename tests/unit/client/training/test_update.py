"""The update: accumulation, the first epoch's ratio, FedProx, the optimizer."""

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import torch

from pubswap_client.policy.groups import Batch, Group, collate
from pubswap_client.policy.policy import Policy
from pubswap_client.training.memory import TokenBudget
from pubswap_client.training.metrics import StepMetrics
from pubswap_client.training.objective import objective
from pubswap_client.training.team import Team, Update
from pubswap_client.training.update import UpdateContext, follow_update, update
from pubswap_protocol.errors import Diverged, StaleAdapter
from pubswap_protocol.methods.method import FedProx, PubSwap
from pubswap_protocol.model import ModelCard
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import Adapter
from pubswap_protocol.tensors.responses import Response
from support.client.reference import padded_scores, padded_targets

CardOf = Callable[[Path], ModelCard]


@pytest.fixture
def batch(make_responses: Callable[..., list[Response]]) -> Batch:
    """Two groups with a difference in rewards and one without; two responses are donated."""
    prompts = ([4, 13, 5, 17], [6, 7, 8, 9, 10, 11, 17], [5, 17])
    rewards = ([1.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0])
    lengths = ([3, 12, 1, 6], [5, 2, 9, 9], [7, 2, 12, 4])
    donated = ([3], [0], [])
    return collate(
        [
            Group(prompts[i], make_responses(lengths[i], seed=i, donated=donated[i]), rewards[i])
            for i in range(3)
        ],
    )


def changed(settings: RunSettings, **grpo: Any) -> RunSettings:
    values = settings.model_dump()
    values["method"] = grpo.pop("method", values["method"])
    values["grpo"] |= grpo
    return RunSettings.model_validate(values)


def one_update(
    policy: Policy, batch: Batch, settings: RunSettings, budget: int = 1 << 20, rate: float = 0.1
) -> tuple[StepMetrics, Adapter]:
    """The result of an update by plain gradient descent; the policy's adapter is restored
    afterwards.
    """
    start = policy.adapter()
    optimizer = torch.optim.SGD(policy.trainable(), lr=rate)
    round_start = [torch.zeros_like(factor) for factor in policy.trainable()]
    policy.settings = settings
    context = UpdateContext(policy, TokenBudget(budget))
    metrics = update(context, optimizer, batch, round_start)
    trained = policy.adapter()
    policy.load_adapter(start)
    return metrics, trained


def distance(left: Adapter, right: Adapter) -> float:
    return max(float(np.abs(left[name] - right[name]).max()) for name in left)


@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean", "constant"])
@pytest.mark.parametrize(
    ("donor_ratio", "clipping"),
    [
        *(("local", "token"), ("decoupled", "token"), ("local", "sequence")),
    ],
)
@pytest.mark.parametrize("budget", [1, 30])
def test_micro_batches_give_the_whole_batchs_gradient(
    policy: Policy,
    batch: Batch,
    run_settings: RunSettings,
    aggregation: str,
    donor_ratio: str,
    clipping: str,
    budget: int,
) -> None:
    """With two epochs and active clipping, the result does not depend on the micro-batches."""
    chosen = {"method": PubSwap(donor_ratio=donor_ratio), "clipping": clipping, "kl_beta": 0.1}
    settings = changed(run_settings, loss_aggregation=aggregation, **chosen)
    whole, reached = one_update(policy, batch, settings)
    parts, also_reached = one_update(policy, batch, settings, budget)
    assert distance(reached, policy.adapter()) > 1e-3
    assert distance(reached, also_reached) < 1e-6
    for name in ("loss", "kl", "clip_share", "donated_clip_share", "grad_norm"):
        assert getattr(parts, name) == pytest.approx(getattr(whole, name), rel=1e-4, abs=1e-6)


def test_the_first_epoch_is_the_plain_policy_gradient(
    policy: Policy, batch: Batch, run_settings: RunSettings
) -> None:
    """At ratio 1 nothing is clipped, and the step follows sum c A grad log pi."""
    plain = {"gradient_epochs": 1, "kl_beta": 0.0, "rollout_correction": "none"}
    settings = changed(run_settings, max_grad_norm=1e9, **plain)
    metrics, trained = one_update(policy, batch, settings)
    assert metrics.clip_share == 0
    total = torch.zeros(())
    for row in range(batch.rows):
        length = batch.lengths[row]
        ids = torch.cat([batch.prompts[row // batch.group_size], batch.responses[row]])
        logprobs = (policy.model(ids[None]).logits[0] / 0.7).log_softmax(dim=-1)
        for t in range(len(ids) - length, len(ids)):
            total = total + batch.advantages[row] * logprobs[t - 1, ids[t]] / length / batch.rows
    gradients = torch.autograd.grad(total, policy.trainable())
    start = policy.adapter()
    for (name, array), gradient in zip(start.items(), gradients, strict=True):
        assert np.allclose(trained[name], array + 0.1 * gradient.numpy(), atol=1e-6)


@pytest.mark.parametrize("aggregation", ["sequence_mean", "constant"])
def test_the_second_epoch_is_held_against_the_first_one_s_policy(
    policy: Policy, batch: Batch, run_settings: RunSettings, aggregation: str
) -> None:
    """Its old log-probabilities are from before the first epoch's step.

    The reported share is one of tokens, whatever the coefficients of the loss sum to.
    """
    once = changed(run_settings, gradient_epochs=1, loss_aggregation=aggregation)
    twice = changed(run_settings, gradient_epochs=2, loss_aggregation=aggregation)
    with torch.no_grad():
        old = padded_scores(policy, batch, 0.7).logprobs
        with policy.reference():
            reference = padded_scores(policy, batch, 0.7).logprobs
    first, middle = one_update(policy, batch, once, rate=2.0)
    both, _ = one_update(policy, batch, twice, budget=30, rate=2.0)
    policy.load_adapter(middle)
    targets = padded_targets(batch, twice, old, reference)
    second = objective(padded_scores(policy, batch, 0.7).logprobs, targets, twice.grpo)
    assert second.clip_share > 0
    assert both.loss == pytest.approx((first.loss + second.total.item()) / 2, abs=1e-5)
    share = second.clip_share.item() / targets.weights.sum().item()
    assert both.clip_share == pytest.approx(share / 2, abs=1e-5)


@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean"])
def test_donated_tokens_are_told_apart(
    policy: Policy, batch: Batch, run_settings: RunSettings, aggregation: str
) -> None:
    """The metrics have their mean probability before the step, and the weighted share that is
    clipped.
    """
    settings = changed(run_settings, loss_aggregation=aggregation, gradient_epochs=2)
    donated = batch.donated[:, None] & batch.response_mask
    with torch.no_grad():
        old = padded_scores(policy, batch, 0.7).logprobs
    _, middle = one_update(policy, batch, changed(settings, gradient_epochs=1), rate=2.0)
    metrics, _ = one_update(policy, batch, settings, budget=30, rate=2.0)
    policy.load_adapter(middle)
    targets = padded_targets(batch, settings, old, None)
    with torch.no_grad():
        now = padded_scores(policy, batch, 0.7).logprobs
    _, stopped = settings.grpo.clipping.surrogate(now, targets.old, targets.advantages, None)
    assert metrics.donated_tokens == int(donated.sum()) == 11
    assert metrics.donated_probability == pytest.approx(old[donated].exp().mean().item(), rel=1e-5)
    weights = targets.weights[donated]
    share = (weights * stopped[donated]).sum().item() / weights.sum().item()
    assert share > 0
    # The mean of two epochs; in the first, all ratios are 1.
    assert metrics.donated_clip_share == pytest.approx(share / 2, rel=1e-5)


def test_a_step_without_donated_tokens_reports_zeros_for_them(
    policy: Policy, batch: Batch, run_settings: RunSettings
) -> None:
    """As in a private step, there is no division by zero."""
    own = replace(batch, donated=torch.zeros_like(batch.donated))
    metrics, _ = one_update(policy, own, run_settings)
    found = (metrics.donated_tokens, metrics.donated_probability, metrics.donated_clip_share)
    assert found == (0, 0.0, 0.0)


def test_groups_of_equal_rewards_teach_nothing_but_the_kl(
    policy: Policy, make_responses: Callable[..., list[Response]], run_settings: RunSettings
) -> None:
    """Without a KL term the factors stay unchanged; with it they move."""
    batch = collate([Group([5, 17], make_responses([3, 4, 5, 6], 0), [1.0] * 4)])
    start = policy.adapter()
    metrics, trained = one_update(policy, batch, changed(run_settings, kl_beta=0.0))
    assert (distance(trained, start), metrics.loss, metrics.zero_variance_share) == (0, 0, 1)
    metrics, trained = one_update(policy, batch, changed(run_settings, kl_beta=0.1))
    assert distance(trained, start) > 0
    assert metrics.loss > 0


def test_fedprox_adds_mu_times_the_distance_to_the_gradient(
    policy: Policy, batch: Batch, run_settings: RunSettings
) -> None:
    """Once for the whole batch, whatever the micro-batches; only with method fedprox."""
    plain = changed(run_settings, gradient_epochs=1, max_grad_norm=1e9)
    prox = changed(run_settings, gradient_epochs=1, max_grad_norm=1e9, method=FedProx())
    without, free = one_update(policy, batch, plain, budget=30)
    with_it, held = one_update(policy, batch, prox, budget=30)
    start = policy.adapter()
    for name, array in start.items():
        assert np.allclose(free[name] - held[name], 0.1 * 0.01 * array, atol=1e-6)
    squares = sum(float((array.astype(np.float64) ** 2).sum()) for array in start.values())
    assert with_it.loss - without.loss == pytest.approx(0.005 * squares, rel=1e-4)


def test_the_gradient_is_clipped_to_its_norm(
    policy: Policy, batch: Batch, run_settings: RunSettings
) -> None:
    """All factors together move by at most rate * max_grad_norm; the reported norm is from before
    clipping.
    """
    settings = changed(run_settings, gradient_epochs=1, max_grad_norm=1e-3)
    metrics, trained = one_update(policy, batch, settings)
    start = policy.adapter()
    moved = sum(float(((trained[n] - start[n]).astype(np.float64) ** 2).sum()) for n in start)
    assert metrics.grad_norm > 1e-3
    assert np.sqrt(moved) == pytest.approx(0.1 * 1e-3, rel=1e-3)


def test_metrics_count_own_rewards_and_all_tokens(
    policy: Policy, batch: Batch, run_settings: RunSettings
) -> None:
    """A peer's right response does not count as our reward."""
    metrics, _ = one_update(policy, batch, run_settings)
    assert metrics.reward == pytest.approx(5 / 10)
    assert metrics.zero_variance_share == pytest.approx(1 / 3)
    assert metrics.tokens == 72
    assert metrics.response_tokens == 6
    assert metrics.cut_share == pytest.approx(2 / 12)
    assert metrics.seconds > 0


def test_one_forward_pass_is_made_for_each_use(
    policy: Policy, batch: Batch, run_settings: RunSettings
) -> None:
    """One for the reference and one for each epoch, but none for the old log-probabilities."""
    calls: list[None] = []
    embedding = policy.model.get_input_embeddings()
    handle = embedding.register_forward_hook(lambda *_: calls.append(None))
    one_update(policy, batch, run_settings)
    handle.remove()
    assert len(calls) == 3


def test_an_entropy_bonus_raises_the_entropy(
    policy: Policy, batch: Batch, run_settings: RunSettings
) -> None:
    """The bonus lowers the loss; after the update the policy is less certain than without it."""
    plain = changed(run_settings, kl_beta=0.0, gradient_epochs=1)
    bonus = changed(run_settings, kl_beta=0.0, gradient_epochs=1, entropy_coefficient=1.0)
    without, free = one_update(policy, batch, plain)
    with_it, steered = one_update(policy, batch, bonus)
    assert with_it.loss < without.loss
    entropies = []
    for adapter in (free, steered):
        policy.load_adapter(adapter)
        with torch.no_grad():
            scores = padded_scores(policy, batch, run_settings.grpo.temperature)
        assert scores.entropy is not None
        entropies.append(float(scores.entropy.sum()))
    assert entropies[1] > entropies[0]


def test_tokens_that_another_policy_sampled_are_noticed_before_any_step(
    policy: Policy, batch: Batch, run_settings: RunSettings
) -> None:
    """The mismatch with the engine is measured on own tokens, and refused if large."""
    optimizer = torch.optim.SGD(policy.trainable(), lr=0.1)
    context, start = UpdateContext(policy, TokenBudget(1 << 20)), policy.adapter()
    with pytest.raises(StaleAdapter, match="serves another adapter"):
        update(context, optimizer, batch, [], max_mismatch=0.05)
    assert distance(policy.adapter(), start) == 0
    with torch.no_grad():
        sampled = padded_scores(policy, batch, 0.7).logprobs
    donors = batch.donated[:, None]
    honest = replace(batch, behaviour=torch.where(donors, batch.behaviour, sampled + 0.01))
    metrics = update(context, optimizer, honest, [], max_mismatch=0.05)
    assert metrics.mismatch == pytest.approx(0.01, abs=1e-5)


def test_a_step_with_a_non_finite_loss_is_refused_before_the_factors_change(
    policy: Policy, batch: Batch, run_settings: RunSettings
) -> None:
    """Here a factor is so large that the forward pass overflows."""
    adapter = policy.adapter()
    name = next(name for name in adapter if ".lora_B." in name)
    adapter[name][:] = 3e38
    policy.load_adapter(adapter)
    with pytest.raises(Diverged, match=r"lower grpo\.learning_rate"):
        one_update(policy, batch, run_settings)
    assert all(np.array_equal(policy.adapter()[name], adapter[name]) for name in adapter)


@dataclass
class OneOfTwo(Team):
    """One of two processes, here threads, that share what they say when both have come."""

    rank: int
    meeting: Barrier
    said: list[Any]
    size = 2

    def share(self, plans: Sequence[list[int]]) -> list[list[int]]:
        return list(plans[self.rank :: 2])

    def all_reduce(self, tensors: Sequence[torch.Tensor]) -> None:
        for tensor, parts in zip(tensors, zip(*self._all(tensors), strict=True), strict=True):
            tensor.copy_(sum(parts))

    def broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        with torch.no_grad():
            for tensor, new in zip(tensors, self._all(tensors)[0], strict=True):
                tensor.copy_(new)

    def any(self, flag: bool) -> bool:
        return any(self._all(flag))

    def _all(self, value: Any) -> list[Any]:
        self.said[self.rank] = copy.deepcopy(value)
        self.meeting.wait()
        values = list(self.said)
        self.meeting.wait()
        return values


def test_every_process_leaves_a_step_that_diverges(
    policy: Policy, batch: Batch, run_settings: RunSettings
) -> None:
    """The daemon goes on, so its followers must be ready for the next command."""
    adapter = policy.adapter()
    adapter[next(name for name in adapter if ".lora_B." in name)][:] = 3e38
    policy.load_adapter(adapter)
    meeting, said = Barrier(2, timeout=120), [None, None]
    shared, optimizer = Update(batch, 1 << 20, None), torch.optim.SGD(policy.trainable(), lr=0.1)
    with ThreadPoolExecutor(1) as pool:
        follower = OneOfTwo(1, meeting, said)
        followed = pool.submit(follow_update, copy.deepcopy(policy), shared, False, follower)
        with pytest.raises(Diverged):
            leader = OneOfTwo(0, meeting, said)
            update(UpdateContext(policy, TokenBudget(1 << 20), team=leader), optimizer, batch, [])
        followed.result()

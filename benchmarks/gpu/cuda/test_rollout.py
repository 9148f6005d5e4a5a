"""Sampling: the engine's log-probabilities match the trainer's, however rows are split."""

import pytest
import torch

from benchmarks.gpu.context import Context
from benchmarks.gpu.mismatch import apart
from benchmarks.gpu.plan import FIRST, KINDS, MODELS
from benchmarks.workload import Workload
from pubswap_client.policy.policy import Policy
from pubswap_client.rollout.transformers_engine import SamplingParameters, TransformersEngine
from pubswap_protocol.tensors.responses import Response

COUNT, LONG = 4, 30
# The last norm's weight. The models' own makes all tokens about equally likely, so an engine that
# left out the adapter would still be right within rounding.
LAST_NORM = 4.0


def prompts_of(context: Context, policy: Policy) -> list[list[int]]:
    return Workload.make(context.scale.lengths, policy.card.vocabulary).prompts


WAYS = {
    "default": {},
    "plain": {"merge": False, "static": False},
    "merged": {"merge": True, "static": False},
    "static": {"merge": False, "static": True, "graphs": False},
    "masked": {"static": True, "fused": False},
    "all": {"merge": True, "static": True},
}


def sampled(
    policy: Policy, prompts: list[list[int]], way: str = "default", rows: int = 512
) -> list[list[Response]]:
    engine = TransformersEngine(policy, max_rows=rows)
    for name, value in WAYS[way].items():
        setattr(engine, name, value)
    groups = engine.generate(prompts, SamplingParameters(COUNT, LONG, 1.0, 5))
    # There was no silent fallback.
    assert {name: getattr(engine, name) for name in WAYS[way]} == WAYS[way]
    if policy.device.type == "cuda" and way == "default":
        assert engine.merge
        assert engine.static
        assert engine.fused
        assert engine.graphs
    engine.close()
    return groups


@pytest.mark.parametrize("way", WAYS)
def test_the_engines_log_probabilities_are_the_trainers(context: Context, way: str) -> None:
    """They differ by rounding only, in nats, also at ragged ends."""
    exact = context.device.type == "cpu"
    models = MODELS if not exact else KINDS if way == "all" else (FIRST,)
    for model in models:
        policy = context.policy(model, mean=20)
        with torch.no_grad():
            policy.decoder.norm.weight.fill_(LAST_NORM)
        policy.card = policy.card.model_copy(update={"eos_token_ids": tuple(range(2, 27))})
        prompts = prompts_of(context, policy)
        groups = sampled(policy, prompts, way)
        assert len({len(response.tokens) for group in groups for response in group}) > 3
        trained = apart(policy, prompts, groups, temperature=1.0)
        with policy.reference():
            unadapted = apart(policy, prompts, groups, temperature=1.0)
        assert float(trained.mean()) <= (1e-5 if exact else 0.02), model
        assert float(trained.max()) <= (1e-4 if exact else 0.5), model
        assert float(unadapted.mean()) > 0.05, model
    context.free()


def test_draws_are_keyed_by_place(context: Context) -> None:
    """Sampling rows a few at a time gives the same as all at once; on a GPU, up to rare ties."""
    policy = context.policy(FIRST)
    prompts = prompts_of(context, policy)
    whole, split = (sampled(policy, prompts, rows=rows) for rows in (512, 8))
    same = [
        one.tokens.tolist() == other.tokens.tolist()
        for left, right in zip(whole, split, strict=True)
        for one, other in zip(left, right, strict=True)
    ]
    assert sum(same) / len(same) >= (1.0 if context.device.type == "cpu" else 0.7)


def test_the_likeliest_tokens_are_those_of_transformers_generate(context: Context) -> None:
    """At a temperature near 0, against transformers' own greedy decoding of the same model."""
    policy = context.policy(FIRST)
    (prompt,) = prompts_of(context, policy)[:1]
    engine = TransformersEngine(policy)
    ((response,),) = engine.generate([prompt], SamplingParameters(1, 12, 1e-4, 0))
    engine.close()
    ids = torch.tensor([prompt], device=context.device)
    greedy = policy.model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=12,
        do_sample=False,
        eos_token_id=list(policy.card.eos_token_ids),
        pad_token_id=0,
    )[0, len(prompt) :].tolist()
    same = [a == b for a, b in zip(response.tokens.tolist(), greedy, strict=False)]
    assert all(same) if context.device.type == "cpu" else all(same[:3])

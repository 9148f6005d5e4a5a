"""The attacks, on an adapter that has memorised its members and on an untrained one."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from pubswap_client.policy.policy import Policy
from pubswap_client.privacy.attacks import Attacker, Likelihoods
from pubswap_client.privacy.report import AttackResult, AuditReport, audited
from pubswap_client.rollout.transformers_engine import TransformersEngine
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import InvalidAdapter
from pubswap_protocol.model import model_card
from pubswap_protocol.problems import Problem
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import initial_adapter
from support.client.models import CHARACTERS

DIGEST = digest_of(b"")


def drawn_problems(seed: int, count: int) -> list[Problem]:
    """Random prompts and answers from one distribution."""
    rng = np.random.default_rng(seed)

    def word(size: int) -> str:
        return "".join(rng.choice(list(CHARACTERS.replace(" ", "")), size))

    return [Problem(id=f"id-{seed}-{n}", prompt=word(8), answer=word(4)) for n in range(count)]


MEMBERS, OTHERS = drawn_problems(1, 30), drawn_problems(2, 40)


@pytest.fixture
def attacker(make_model: Callable[..., Path], run_settings: RunSettings) -> Attacker:
    """An attacker with an untrained adapter of enough capacity.

    A narrower model memorises only some members, and which ones depends on the machine's rounding.
    """
    torch.set_num_threads(1)
    wide = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 32}
    folder = make_model("qwen3", initializer_range=0.1, **wide)
    lora = run_settings.lora.model_copy(update={"rank": 8, "alpha": 32})
    settings = run_settings.model_copy(update={"lora": lora})
    card = model_card(folder, lora, "tiny", None)
    policy = Policy.load(folder, card, settings, device="cpu")
    policy.load_adapter(initial_adapter(card.layout, 1))
    return Attacker(policy, TransformersEngine(policy), policy.encode, 200)


def memorise(policy: Policy, members: Sequence[Problem], others: Sequence[Problem]) -> None:
    """Train the adapter on the members' answers, and keep the others as the base model has them."""
    optimizer = torch.optim.Adam(policy.trainable(), lr=1e-2)
    inside, outside = (
        torch.tensor([policy.encode(problem.prompt + problem.answer) for problem in problems])
        for problems in (members, others)
    )
    with policy.reference(), torch.no_grad():
        base = policy.model(outside).logits
    for _ in range(60):
        logits = policy.model(inside).logits[:, 7:-1].flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, inside[:, 8:].flatten())
        loss += 4 * (policy.model(outside).logits - base).square().mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def audit(attacker: Attacker, members: Sequence[Problem], others: Sequence[Problem]) -> AuditReport:
    return audited(
        "run", 1, DIGEST, list(attacker.look(members, "in")), list(attacker.look(others, "out"))
    )


def test_an_adapter_that_has_learnt_its_members_by_heart_is_found(attacker: Attacker) -> None:
    """By answers and by its own responses, but not by the base model; the report quotes nothing."""
    memorise(attacker.policy, MEMBERS, OTHERS)
    report = audit(attacker, MEMBERS, OTHERS)
    found = {outcome.attack: outcome for outcome in report.outcomes}
    for name in ("answer", "answer, against base"):
        assert found[name].auc > 0.9 and found[name].found > 0.3, found[name]
    assert found["responses, against base"].lower > 0.5, found
    assert not report.control.tells
    assert report.verdict == "told apart"
    for problem in (*MEMBERS, *OTHERS):
        for text in (problem.id, problem.prompt, problem.answer):
            assert text not in report.json_text


def test_an_untrained_adapter_gives_nothing_away(attacker: Attacker) -> None:
    """It computes the same as the base model."""
    report = audit(attacker, MEMBERS, OTHERS)
    for outcome in (*report.outcomes, report.control):
        assert outcome.lower <= 0.5 <= outcome.upper, outcome
    against = [outcome for outcome in report.outcomes if "against" in outcome.attack]
    assert [outcome.auc for outcome in against] == [0.5, 0.5]
    assert report.verdict == "not told apart"


def test_sets_of_different_kinds_are_not_compared(attacker: Attacker) -> None:
    """The base model alone tells them apart, so they say nothing about the adapter."""
    looks = sorted(attacker.look((*MEMBERS, *OTHERS), "both"), key=lambda each: each.answer_base)
    report = audited("run", 1, DIGEST, looks[:35], looks[35:])
    assert report.verdict == "not comparable" and "cannot be compared" in report.text
    assert "100 of 100 pairs" in report.text


def likelihoods(values: Sequence[float], base: Sequence[float]) -> list[Likelihoods]:
    return [Likelihoods(x, y, 0.0, 0.0) for x, y in zip(values, base, strict=True)]


def test_the_verdict_is_in_plain_words() -> None:
    """As pairs out of 100, even for an attack that is wrong more often than right."""
    rng = np.random.default_rng(3)
    base = rng.normal(size=400)
    inside, outside = base[:200], base[200:]
    told = audited("run", 1, DIGEST, likelihoods(inside + 2, inside), likelihoods(outside, outside))
    assert told.verdict == "told apart"
    assert "is right in 100 of 100 pairs (" in told.text and "50 is a coin" in told.text
    turned = audited(
        "run", 1, DIGEST, likelihoods(inside - 2, inside), likelihoods(outside, outside)
    )
    assert "is right in 100 of 100 pairs (" in turned.text
    coin = audited("run", 1, DIGEST, likelihoods(inside, inside), likelihoods(outside, outside))
    assert coin.verdict == "not told apart" and "no proof" in coin.text
    outcome = AttackResult(attack="", words="", auc=0.3, lower=0.2, upper=0.45, found=0, chance=1)
    assert outcome.pairs == "70 of 100 pairs (55 to 80, inverted)"


def test_a_few_members_that_stand_out_are_reported() -> None:
    """Over all pairs the attack is a coin flip, but no other scores as high as these."""
    base = np.random.default_rng(3).normal(size=400)
    inside, outside = base[:200], base[200:]
    gained = inside + np.where(np.arange(200) < 20, 9, 0)
    report = audited(
        "run", 1, DIGEST, likelihoods(gained, base[:200]), likelihoods(outside, base[200:])
    )
    (answer, *_) = report.outcomes
    assert answer.lower <= 0.5 <= answer.upper and answer.tells
    assert report.verdict == "told apart"


def test_scores_that_are_not_finite_are_refused() -> None:
    """Every comparison with NaN is false."""
    with pytest.raises(InvalidAdapter, match="not finite"):
        audited("run", 1, DIGEST, likelihoods([float("nan")], [0.0]), likelihoods([0.0], [0.0]))

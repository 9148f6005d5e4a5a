"""The policy's rules, without files or clocks: what they refuse, and in which words."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from pubswap_client.consent.approval import Approval
from pubswap_client.consent.policy import LocalPolicy
from pubswap_client.consent.policy_commands import print_compared
from pubswap_client.consent.proposal import Proposal
from pubswap_client.consent.rules import Code, Refusal, compare, judge
from pubswap_protocol.settings import RunSettings
from support.client.terms import changed, proposed
from support.coordinator.coordinator import merged

NOON = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)  # a Monday


def asking(**overrides: Any) -> Proposal:
    """What a run with these settings asks in its first round."""
    return proposed(merged(overrides))


def approving(ask: Proposal) -> Approval:
    """A person's approval of it."""
    return Approval(
        run="r",
        approved=True,
        coordinator=ask.coordinator,
        terms=ask.terms,
        at=NOON,
    )


ASK = asking(privacy={"epsilon": 8.0})
APPROVED = approving(ASK)


def refused(
    policy: dict[str, Any],
    ask: Proposal = ASK,
    approval: Approval | None = APPROVED,
) -> list[Code]:
    """The codes of all refusals."""
    parsed = LocalPolicy.model_validate(policy)
    return [one.code for one in judge(parsed, ask, approval)]


def limit(setting: str, **sides: float) -> dict[str, Any]:
    """A policy that limits only this setting."""
    return {"limits": {setting: sides}}


@pytest.mark.parametrize(
    ("allowed", "code"),
    [
        ({"coordinators": ("https://else.example",)}, Code.COORDINATOR),
        ({"runs": ("another",)}, Code.RUN),
        ({"base_models": ("sha256:" + "d" * 64,)}, Code.BASE_MODEL),
        (limit("lora.rank", max=1), Code.SETTING),
        (limit("grpo.max_response_tokens", max=15), Code.SETTING),
        (limit("local_steps", max=1), Code.SETTING),
        (limit("rounds", max=1), Code.SETTING),
        (limit("grpo.kl_beta", min=0.1), Code.SETTING),
        (limit("privacy.epsilon", max=7.9), Code.SETTING),
        (limit("grpo.temperature", max=0.5), Code.SETTING),
        (limit("grpo.responses_per_prompt", max=3), Code.SETTING),
        (limit("method.period", min=3), Code.SETTING),
        ({"send_responses": False}, Code.RESPONSES),
        ({"max_responses_a_round": 7}, Code.SETTING),
    ],
)
def test_each_limit_refuses_only_what_exceeds_it(allowed: dict[str, Any], code: Code) -> None:
    """A value at the limit is allowed; the reason names what the run asks for."""
    assert refused(allowed) == [code]
    policy = LocalPolicy.model_validate(allowed)
    (line,) = [line for line in compare(policy, ASK) if line.code]
    (refusal,) = judge(policy, ASK, APPROVED)
    assert line.what in refusal.detail
    within = {
        "coordinators": ("https://c.example/",),
        "runs": ("r",),
        "base_models": (ASK.view.model.weights_digest,),
        "limits": {
            "lora.rank": {"max": 2},
            "grpo.max_response_tokens": {"min": 16, "max": 16},
            "local_steps": {"max": 2},
            "rounds": {"max": 2},
            "grpo.kl_beta": {"min": 1e-4},
            "privacy.epsilon": {"max": 8},
            "grpo.temperature": {"max": 0.7},
            "grpo.responses_per_prompt": {"max": 4},
            "method.period": {"min": 2},
        },
        "send_responses": True,
        "max_responses_a_round": 8,
    }
    assert refused({key: within[key] for key in allowed}) == []
    assert refused(within) == []


def test_the_reason_says_what_is_asked_and_what_is_allowed() -> None:
    """It uses words that the operator understands."""
    asked = limit("lora.rank", max=1)["limits"] | limit("method.period", min=4, max=5)["limits"]
    rank, period = judge(LocalPolicy.model_validate({"limits": asked}), ASK, APPROVED)
    assert rank.detail == "The run asks for LoRA rank: 2. This organisation allows: at most 1."
    assert period.detail == (
        "The run asks for method.period: 2. This organisation allows: at least 4, at most 5."
    )


def test_what_a_run_asks_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters from a coordinator must not hide other terms from the person who
    approves.
    """
    source = "org/model\x1b[2J\x1b[8m"
    odd = changed(ASK, model=ASK.view.model.model_copy(update={"source": source}))
    refusal = Refusal(Code.BASE_MODEL, f"model: {source}")
    print_compared(LocalPolicy(), odd, [refusal])
    shown = capsys.readouterr().out
    assert "org/model [2J" in shown and "\x1b" not in shown


def test_a_limit_on_public_steps_does_not_apply_to_a_run_without_any() -> None:
    """It has no settings of public steps; the table says so. Other limits do apply,
    and a member that sends no responses takes part.
    """
    plain = asking(method="fedavg")
    approved = approving(plain)
    allowed = limit("method.period", min=9)
    assert refused(allowed) == [Code.SETTING] and refused(allowed, plain, approved) == []
    assert compare(LocalPolicy.model_validate(allowed), plain)[-1].asks == "not in this run"
    assert refused(limit("grpo.responses_per_prompt", max=3), plain, approved) == [Code.SETTING]
    assert refused({"send_responses": False}, plain, approved) == []


def test_a_policy_that_demands_privacy_refuses_a_run_without_it() -> None:
    """Even in mid-run, if a coordinator removes it from the settings."""
    without = asking()
    assert refused(limit("privacy.epsilon", max=100), without) == [Code.SETTING, Code.NOT_APPROVED]
    assert refused({}, without) == [Code.NOT_APPROVED]


def test_a_round_beyond_the_run_s_last_is_refused() -> None:
    """Continuing after the agreed rounds asks for more than was approved."""
    beyond = changed(ASK, round=3)
    assert refused(limit("rounds", max=2), beyond) == [Code.SETTING, Code.NOT_APPROVED]


def test_the_first_approval_covers_only_what_was_asked_then() -> None:
    """Anything more in mid-run needs a new approval, and the reason names it, but no address."""
    assert refused({}, approval=None) == [Code.NOT_APPROVED]
    assert refused({}) == []
    more = asking(lora={"rank": 4}, privacy={"epsilon": 8.0})
    (refusal,) = judge(LocalPolicy(), more, APPROVED)
    assert refusal.detail == ("Changed since this organisation approved the run: lora.rank 2 -> 4.")
    moved = replace(ASK, coordinator="https://moved.example")  # say from an address within
    (refusal,) = judge(LocalPolicy(), moved, APPROVED)
    assert refusal.detail == "Changed since this organisation approved the run: coordinator."


@pytest.mark.parametrize(("round_", "codes"), [(None, []), (0, []), (3, [Code.NOT_APPROVED])])
def test_an_approval_of_one_round_does_not_count_for_all(
    round_: int | None, codes: list[Code]
) -> None:
    """An earlier version could ask in every round; before the first, it approved the run."""
    saved = APPROVED.model_dump() | {"round": round_}
    assert refused({}, approval=Approval.model_validate(saved)) == codes


def test_a_policy_may_need_no_approval_but_a_denial_always_holds() -> None:
    """Its limits then decide alone."""
    assert refused({"approve": "never"}, approval=None) == []
    denied = Approval(run="r", approved=False, at=NOON)
    for approve in ("first", "never"):
        assert refused({"approve": approve}, approval=denied) == [Code.DENIED]


def test_messages_before_each_prompt_are_shown_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """A person approves their words, which cannot change what the terminal shows."""
    shot = {"prompt": "1 + 1 =", "answer": "It is\x1b[2J 2."}
    values = {"system_prompt": "Be terse. " * 20, "few_shot": [shot, shot]}
    told = proposed(RunSettings.model_validate(values))
    lines = {line.what: line for line in compare(LocalPolicy(), told)}
    assert lines["system prompt"].asks == "Be terse. " * 20
    assert lines["few-shot examples"].asks.count("1 + 1 =\n→ It is") == 2
    print_compared(LocalPolicy(), told)
    shown = capsys.readouterr().out
    assert shown.count("terse") == 20 and "\x1b[2J" not in shown
    assert "system_prompt" not in shown, "it is not repeated below the table"
    bare = {line.what: line for line in compare(LocalPolicy(), asking())}
    assert (bare["system prompt"].asks, bare["few-shot examples"].asks) == ("none", "none")

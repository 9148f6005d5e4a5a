"""Rules: policy, what a run asks, approval and what was sent → what is refused."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from pubswap_client.consent.approval import Approval
from pubswap_client.consent.policy import LocalPolicy
from pubswap_client.consent.proposal import FACTS, Proposal, shown
from pubswap_protocol.command_line.amounts import size_text
from pubswap_protocol.errors import InvalidSettings, OtherTerms
from pubswap_protocol.tensors.update_encoding import largest_update
from pubswap_protocol.terms import UNSET, differences
from pubswap_protocol.verifiers import verifier_version

CLIENTS, COORDINATOR = "clients", "coordinator"


class Code(StrEnum):
    """Why an organisation stays away. The codes are stable, and sent to the coordinator."""

    COORDINATOR = "coordinator_not_allowed"
    RUN = "run_not_allowed"
    BASE_MODEL = "base_model_not_allowed"
    VERIFIER = "verifier_not_allowed"
    SETTING = "setting_not_allowed"
    RESPONSES = "responses_not_allowed"
    NOT_APPROVED = "not_approved"
    DENIED = "denied"
    TERMS = "other_terms"
    UNREADABLE = "policy_unreadable"
    DIVERGED = "diverged"


@dataclass(frozen=True, slots=True)
class Refusal:
    """One reason. The text is sent to the coordinator, so it says nothing about this machine."""

    code: Code
    detail: str


def _not_allowed(code: Code, what: str) -> Refusal:
    return Refusal(code, f"This organisation does not allow the {what}.")


NOT_TRUSTED = _not_allowed(Code.COORDINATOR, "coordinator")


def trusts(policy: LocalPolicy, coordinator: str) -> bool:
    """Whether anything may be sent to the coordinator at this address."""
    allowed = policy.coordinators
    return allowed is None or coordinator.rstrip("/") in {url.rstrip("/") for url in allowed}


def judge(
    policy: LocalPolicy, proposal: Proposal, approval: Approval | None
) -> tuple[Refusal, ...]:
    """All reasons to stay away; empty if the organisation takes part."""
    return (*_asks_too_much(policy, proposal), *_not_approved(policy, proposal, approval))


def _asks_too_much(policy: LocalPolicy, proposal: Proposal) -> Iterator[Refusal]:
    for check in compare(policy, proposal):
        if check.code in (Code.COORDINATOR, Code.RUN, Code.BASE_MODEL):
            yield _not_allowed(check.code, check.what)
        elif check.code is not None:
            asks = f"The run asks for {check.what}: {check.asks}."
            yield Refusal(check.code, f"{asks} This organisation allows: {check.allows}.")


def _not_approved(
    policy: LocalPolicy, proposal: Proposal, approval: Approval | None
) -> Iterator[Refusal]:
    if approval is not None and not approval.approved:
        yield Refusal(Code.DENIED, "A person at this organisation has denied the run.")
        return
    if policy.approve == "never":
        return
    why = None
    if approval is None:
        why = "Nobody at this organisation has approved the run yet."
    elif changed := changes(policy, proposal, approval):
        # Without the coordinator's addresses, because the reason is sent to it.
        said = [
            name if name == COORDINATOR or old == new else f"{name} {old} -> {new}"
            for name, (old, new) in changed.items()
        ]
        why = f"Changed since this organisation approved the run: {'; '.join(said)}."
    elif approval.round:  # it does not say whether its policy asked in every round
        why = f"An earlier version may have approved round {approval.round} alone."
    elif proposal.rounds > (last := proposal.settings.rounds):
        why = f"Round {proposal.rounds} is beyond the {last} that this organisation approved."
    if why is not None:
        yield Refusal(Code.NOT_APPROVED, why)


def changes(
    policy: LocalPolicy, proposal: Proposal, approval: Approval
) -> dict[str, tuple[str, str]]:
    """What needs a new approval, by name: as it was approved, and as it is.

    All that differs, except a number of clients within the limits: the operator may set that until
    the run starts.
    """
    changed: dict[str, tuple[str, str]] = {}
    if approval.coordinator != proposal.coordinator:
        changed[COORDINATOR] = str(approval.coordinator), proposal.coordinator
    try:
        changed |= differences(approval.terms or "", proposal.terms)
    except OtherTerms:
        changed["terms that this version of PubSwap cannot read"] = UNSET, UNSET
    limit = policy.limits.get(CLIENTS)
    if limit is not None and limit.allows(proposal.number(CLIENTS)):
        changed.pop(CLIENTS, None)
    return changed


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that a run asks for, and what the policy allows; `code` if it is refused."""

    what: str
    asks: str
    allows: str = "any"
    code: Code | None = None


def compare(policy: LocalPolicy, proposal: Proposal) -> list[Check]:
    """Compare what a run asks with the policy, one by one; limits on other settings last."""
    run, settings, asked = proposal.view, proposal.settings, proposal.coordinator
    weights = run.model.weights_digest
    urls = policy.coordinators and [url.rstrip("/") for url in policy.coordinators]
    shots = [f"{shot.prompt}\n→ {shot.answer}" for shot in settings.few_shot]
    size = size_text(largest_update(run.model.layout, settings))
    others = [setting for setting in policy.limits if setting not in FACTS.values()]
    return [
        _among("coordinator", asked, urls, {asked}, Code.COORDINATOR),
        _among("run", f"{run.name} ({run.id})", policy.runs, {run.name, run.id}, Code.RUN),
        _among(
            "base model",
            f"{run.model.source}, weights {weights}",
            policy.base_models,
            {weights},
            Code.BASE_MODEL,
        ),
        *(_within(policy, proposal, what, setting) for what, setting in FACTS.items()),
        Check("system prompt", settings.system_prompt or "none"),
        Check("few-shot examples", "\n\n".join(shots) or "none"),
        _verifiers(policy, proposal),
        _responses(policy, proposal),
        Check("sends an adapter", f"each round, up to {size}"),
        *(_within(policy, proposal, setting, setting) for setting in others),
    ]


def _among(
    what: str, asks: str, allowed: Sequence[str] | None, asked: set[str], code: Code
) -> Check:
    if allowed is None:
        return Check(what, asks)
    return Check(what, asks, ", ".join(allowed), code if asked.isdisjoint(allowed) else None)


def _within(policy: LocalPolicy, proposal: Proposal, what: str, setting: str) -> Check:
    limit, has = policy.limits.get(setting), proposal.has(setting)
    number = proposal.number(setting)
    # A parameter of another method or rule is not in the run.
    asks = shown(number) if has else "not in this run"
    if limit is None:
        return Check(what, asks)
    return Check(what, asks, str(limit), Code.SETTING if has and not limit.allows(number) else None)


def _verifiers(policy: LocalPolicy, proposal: Proposal) -> Check:
    allowed, packages = policy.verifiers or (), proposal.packages
    # One that is not installed has no digest, and no policy can allow it.
    refused = any(name not in allowed or "@" not in name for name in packages)
    asks = ", ".join(
        name if "@" in name else f"{name}, which is not installed here as a wheel"
        for name in packages
    )
    theirs = proposal.view.verifier_version
    with suppress(InvalidSettings):  # something is not installed, as said above
        if packages and theirs not in (None, verifier_version(proposal.settings.verifier)):
            asks = f"{theirs}, and another version is installed here: {asks}"
    return Check(
        "verifier",
        asks or str(proposal.settings.verifier),
        ", ".join(["PubSwap's own", *allowed]),
        Code.VERIFIER if refused else None,
    )


def _responses(policy: LocalPolicy, proposal: Proposal) -> Check:
    what, grpo, limit = "sends responses", proposal.settings.grpo, policy.max_responses_a_round
    asks = "no"
    if proposal.sends_responses:
        asks = (
            f"{proposal.responses} a round: {grpo.responses_per_prompt} to a prompt, "
            f"{grpo.prompts_per_step} prompts to a public step"
        )
    if not policy.send_responses:
        return Check(what, asks, "no", Code.RESPONSES if proposal.sends_responses else None)
    if limit is None:
        return Check(what, asks, "any number")
    refused = proposal.responses > limit
    return Check(what, asks, f"at most {limit} a round", Code.SETTING if refused else None)

"""Rules: policy, what a run asks, approval and what was sent → what is refused."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pubswap_client.consent.approval import COORDINATOR, Approval
from pubswap_client.consent.policy import LocalPolicy
from pubswap_client.consent.proposal import FACTS, MESSAGES, Proposal, shown

CLIENTS = "clients"


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
    elif proposal.rounds > (last := proposal.settings.rounds):
        why = f"Round {proposal.rounds} is beyond the {last} that this organisation approved."
    if why is not None:
        yield Refusal(Code.NOT_APPROVED, why)


def changes(
    policy: LocalPolicy, proposal: Proposal, approval: Approval
) -> dict[str, tuple[str, str]]:
    """What needs a new approval: all that differs, except a number of clients within the limits.

    The operator may set that number until the run starts.
    """
    changed, limit = approval.changed(proposal), policy.limits.get(CLIENTS)
    if limit is not None and limit.allows(proposal.number(CLIENTS)):
        changed.pop(CLIENTS, None)
    return changed


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that a run asks for, and what the policy allows; `code` if it is refused."""

    what: str
    asks: str
    allows: str
    code: Code | None = None


def compare(policy: LocalPolicy, proposal: Proposal) -> list[Check]:
    """Compare one by one, in the order of the proposal's facts; limits on other settings last."""
    urls = policy.coordinators and [url.rstrip("/") for url in policy.coordinators]
    others = [setting for setting in policy.limits if setting not in FACTS.values()]
    allowed = {
        "coordinator": _among(urls, {proposal.coordinator}, Code.COORDINATOR),
        "run": _among(policy.runs, {proposal.name, proposal.run}, Code.RUN),
        "base model": _among(policy.base_models, {proposal.weights}, Code.BASE_MODEL),
        **{what: _within(policy, proposal, setting) for what, setting in FACTS.items()},
        **dict.fromkeys(MESSAGES, ("any", None)),
        "verifier": _verifiers(policy, proposal),
        "sends responses": _responses(policy, proposal),
        "sends an adapter": ("any", None),
        **{setting: _within(policy, proposal, setting) for setting in others},
    }
    asks = proposal.facts() | {
        # A parameter of another method or rule is not in the run.
        each: shown(proposal.number(each)) if proposal.has(each) else "not in this run"
        for each in others
    }
    return [Check(what, asks[what], *rule) for what, rule in allowed.items()]


_Allowed = tuple[str, Code | None]
"""What the policy allows in words, and the code if it refuses what the run asks."""


def _among(allowed: Sequence[str] | None, asked: set[str], code: Code) -> _Allowed:
    if allowed is None:
        return "any", None
    return ", ".join(allowed), code if asked.isdisjoint(allowed) else None


def _within(policy: LocalPolicy, proposal: Proposal, setting: str) -> _Allowed:
    limit = policy.limits.get(setting)
    if limit is None:
        return "any", None
    refused = proposal.has(setting) and not limit.allows(proposal.number(setting))
    return str(limit), Code.SETTING if refused else None


def _verifiers(policy: LocalPolicy, proposal: Proposal) -> _Allowed:
    allowed = policy.verifiers or ()
    # One that is not installed has no digest, and no policy can allow it.
    refused = any(name not in allowed or "@" not in name for name in proposal.packages)
    return ", ".join(["PubSwap's own", *allowed]), Code.VERIFIER if refused else None


def _responses(policy: LocalPolicy, proposal: Proposal) -> _Allowed:
    limit = policy.max_responses_a_round
    if not policy.send_responses:
        return "no", Code.RESPONSES if proposal.sends_responses else None
    if limit is None:
        return "any number", None
    return f"at most {limit} a round", Code.SETTING if proposal.responses > limit else None

"""Rules: policy, what a run asks, approval and what was sent → what is refused."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from pubswap_client.consent.approval import COORDINATOR, Approval
from pubswap_client.consent.ask import FACTS, MESSAGES, Ask
from pubswap_client.consent.limits import concerns, shown
from pubswap_client.consent.local_policy import LocalPolicy
from pubswap_protocol.command_line.amounts import size_text


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
    BYTES = "bytes_of_the_day"
    UNREADABLE = "policy_unreadable"
    DIVERGED = "diverged"


@dataclass(frozen=True, slots=True)
class Refusal:
    """One reason. The text is sent to the coordinator, so it says nothing about this machine."""

    code: Code
    detail: str


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that a run asks for, and what the policy allows; `code` if it is refused."""

    what: str
    allows: str
    code: Code | None = None
    asks: str = ""


def _not_allowed(code: Code, what: str) -> Refusal:
    return Refusal(code, f"This organisation does not allow the {what}.")


CLIENTS = "clients"
NOT_TRUSTED = _not_allowed(Code.COORDINATOR, "coordinator")


def trusts(policy: LocalPolicy, coordinator: str) -> bool:
    """Whether anything may be sent to the coordinator at this address."""
    allowed = policy.coordinators
    return allowed is None or coordinator.rstrip("/") in {url.rstrip("/") for url in allowed}


def compare(policy: LocalPolicy, ask: Ask) -> list[Line]:
    """Compare line by line, in the order of the ask's facts. Unknown facts are not refused.

    Limits on other settings come last.
    """
    facts = ask.facts()
    addresses = policy.coordinators and [url.rstrip("/") for url in policy.coordinators]
    others = [setting for setting in policy.limits if setting not in FACTS.values()]
    lines = [
        _named("coordinator", addresses, (ask.coordinator,), Code.COORDINATOR),
        _named("run", policy.runs, (ask.name, ask.run), Code.RUN),
        _named("base model", policy.base_models, (ask.weights,), Code.BASE_MODEL),
        *(_limited(policy, ask, what, setting) for what, setting in FACTS.items()),
        *(Line(what, "any") for what in MESSAGES),
        _verifiers(policy, ask),
        _responses(policy, ask),
        _size(policy.max_bytes_a_day, ask.sent_bytes),
    ]
    return [replace(line, asks=facts[line.what]) for line in lines] + [
        _other(policy, ask, setting) for setting in others
    ]


def _named(what: str, allowed: object, asked: tuple[str | None, ...], code: Code) -> Line:
    if not isinstance(allowed, (tuple, list)):
        return Line(what, "any")
    values = [name for name in asked if name is not None]
    refused = bool(values) and not set(values) & set(allowed)
    return Line(what, ", ".join(allowed), code if refused else None)


def _verifiers(policy: LocalPolicy, ask: Ask) -> Line:
    allowed = policy.verifiers or ()
    # One that is not installed has no digest, and no policy can allow it.
    refused = any(name not in allowed or "@" not in name for name in ask.packages)
    return Line(
        "verifier", ", ".join(["PubSwap's own", *allowed]), Code.VERIFIER if refused else None
    )


def _limited(policy: LocalPolicy, ask: Ask, what: str, setting: str) -> Line:
    limit = policy.limits.get(setting)
    if limit is None:
        return Line(what, "any")
    refused = not limit.allows(ask.number(setting))
    return Line(what, str(limit), Code.SETTING if refused else None)


def _other(policy: LocalPolicy, ask: Ask, setting: str) -> Line:
    if not concerns(ask.settings, setting):  # a parameter of another method or rule
        return Line(setting, str(policy.limits[setting]), asks="not in this run")
    return replace(_limited(policy, ask, setting, setting), asks=shown(ask.number(setting)))


def _responses(policy: LocalPolicy, ask: Ask) -> Line:
    limit = policy.max_responses_a_round
    if not policy.send_responses:
        return Line("sends responses", "no", Code.RESPONSES if ask.sends_responses else None)
    if limit is None:
        return Line("sends responses", "any number")
    refused = ask.responses > limit
    return Line("sends responses", f"at most {limit} a round", Code.SETTING if refused else None)


def _size(limit: int | None, asked: int | None) -> Line:
    if limit is None:
        return Line("sends an adapter", "any")
    refused = asked is not None and asked > limit
    return Line(
        "sends an adapter", f"{size_text(limit)} a day in all", Code.BYTES if refused else None
    )


def judge(
    policy: LocalPolicy,
    ask: Ask,
    approval: Approval | None,
    sent_bytes: int = 0,
    next_bytes: int = 0,
) -> tuple[Refusal, ...]:
    """All reasons to stay away; empty if the organisation takes part.

    `sent_bytes` were sent on this day, and `next_bytes` are to be sent next.
    """
    return (
        *_asks_too_much(policy, ask),
        *_consent(policy, ask, approval),
        *_day(policy, sent_bytes, next_bytes),
    )


def _asks_too_much(policy: LocalPolicy, ask: Ask) -> Iterator[Refusal]:
    for line in compare(policy, ask):
        if line.code in (Code.COORDINATOR, Code.RUN, Code.BASE_MODEL):
            yield _not_allowed(line.code, line.what)
        elif line.code is not None:
            asks = f"The run asks for {line.what}: {line.asks}."
            yield Refusal(line.code, f"{asks} This organisation allows: {line.allows}.")


def _consent(policy: LocalPolicy, ask: Ask, approval: Approval | None) -> Iterator[Refusal]:
    if approval is not None and not approval.approved:
        yield Refusal(Code.DENIED, "A person at this organisation has denied the run.")
    elif policy.approve == "never":
        return
    elif approval is None:
        yield Refusal(Code.NOT_APPROVED, "Nobody at this organisation has approved the run yet.")
    elif changed := changes(policy, ask, approval):
        # Without the coordinator's addresses, because the reason is sent to it.
        said = [
            name if name == COORDINATOR or old == new else f"{name} {old} -> {new}"
            for name, (old, new) in changed.items()
        ]
        yield Refusal(
            Code.NOT_APPROVED,
            f"Changed since this organisation approved the run: {'; '.join(said)}.",
        )
    elif ask.rounds > ask.settings.rounds:
        yield Refusal(
            Code.NOT_APPROVED,
            f"Round {ask.rounds} is beyond the {ask.settings.rounds} that this organisation "
            "approved.",
        )
    elif policy.approve == "every-round" and ask.round and approval.round != ask.round:
        yield Refusal(
            Code.NOT_APPROVED, f"Nobody at this organisation has approved round {ask.round} yet."
        )


def changes(policy: LocalPolicy, ask: Ask, approval: Approval) -> dict[str, tuple[str, str]]:
    """What needs a new approval: all that differs, except a number of clients within the limits.

    The operator may set that number until the run starts.
    """
    changed, limit = approval.changed(ask), policy.limits.get(CLIENTS)
    if limit is not None and limit.allows(ask.number(CLIENTS)):
        changed.pop(CLIENTS, None)
    return changed


def _day(policy: LocalPolicy, sent_bytes: int, next_bytes: int) -> Iterator[Refusal]:
    limit = policy.max_bytes_a_day
    if limit is not None and sent_bytes + next_bytes > limit:
        yield Refusal(
            Code.BYTES,
            # Does not name the bytes sent so far, because sending this would change them.
            f"This organisation sends at most {limit:,} bytes a day; what comes next, of "
            f"{next_bytes:,} bytes, waits for the next day (UTC).",
        )

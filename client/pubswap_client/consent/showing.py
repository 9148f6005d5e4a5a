"""What a run asks beside what the policy allows, and the policy itself, as tables for people."""

from rich.table import Column, Table

from pubswap_client.consent.approval import Approval
from pubswap_client.consent.ask import Ask
from pubswap_client.consent.local_policy import LocalPolicy
from pubswap_client.consent.rules import compare
from pubswap_client.consent.sent_today import Sent


def comparison(policy: LocalPolicy, ask: Ask) -> Table:
    """One line for each thing that the run asks for, and whether that is allowed."""
    table = Table(
        Column(no_wrap=True),
        Column("the run asks", overflow="fold"),
        Column("the policy allows", overflow="fold"),
        Column(no_wrap=True),
    )
    for line in compare(policy, ask):
        table.add_row(line.what, line.asks, line.allows, "✗" if line.code else "✓")
    return table


def refused_lines(policy: LocalPolicy, ask: Ask) -> list[str]:
    """What the policy refuses of the run, whatever the hour and whoever approves it."""
    return [f"{line.code}: {line.what}" for line in compare(policy, ask) if line.code]


def policy_table(policy: LocalPolicy) -> Table:
    """Each key with its value and what it means."""
    table = Table("key", Column("value", overflow="fold"), "meaning")
    for name, field in LocalPolicy.model_fields.items():
        value = getattr(policy, name)
        table.add_row(name, _text(value), field.description)
    return table


def _text(value: object) -> str:
    if value is None:
        return "any"
    if isinstance(value, dict):
        return "; ".join(f"{name} {limit}" for name, limit in value.items()) or "any"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(value) or "none" if isinstance(value, tuple) else str(value)


def approval_text(approval: Approval | None) -> str:
    """Who has decided what, in a sentence."""
    if approval is None:
        return "Nobody has approved the run yet."
    decision = "approved" if approval.approved else "denied"
    round_ = f" in round {approval.round}" if approval.round else ""
    return f"The run was {decision}{round_}, {approval.at.astimezone():%F %T}."


def sent_text(sent: Sent) -> str:
    """What was sent since midnight UTC, in a sentence."""
    return f"Sent today (UTC): {sent.size:,} bytes, in {len(sent.rounds)} rounds."

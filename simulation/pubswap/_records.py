"""The coordinator's messages as flat records, for pandas."""

from collections.abc import Sequence

from pubswap_protocol.messages import Drift, MemberView, Progress, RoundMeans, RoundSummary

Record = dict[str, object]


def round_records(rounds: Sequence[RoundSummary]) -> list[Record]:
    """One record for each round, all with the same keys."""
    by_topic = [each.evaluation.by_topic for each in rounds if each.evaluation]
    topics = sorted({topic for scores in by_topic for topic in scores})
    return [_round_record(each, topics) for each in rounds]


def _round_record(summary: RoundSummary, topics: Sequence[str]) -> Record:
    evaluation, means, drift = summary.evaluation, summary.means, summary.drift
    scores = evaluation.by_topic if evaluation else {}
    return {
        "round": summary.round,
        "updates": summary.updates,
        "pass@1": evaluation.pass_at_1 if evaluation else None,
        **{f"pass@1 {topic}": scores.get(topic) for topic in topics},
        **{name: getattr(means, name, None) for name in RoundMeans.model_fields},
        **{f"drift_{name}": getattr(drift, name, None) for name in Drift.model_fields},
        "public_steps": len(summary.public_steps),
        "replaced": sum(public_step.replaced for public_step in summary.public_steps),
        "bytes_up": summary.traffic.up,
        "bytes_down": summary.traffic.down,
        "adapter": summary.adapter,
    }


def member_record(member: MemberView) -> Record:
    """A member and its last heartbeat."""
    progress = member.progress
    return {
        "name": member.name,
        "role": member.role.value,
        "active": member.active,
        "suspended": member.suspended,
        "last_seen": member.last_seen,
        "unseen_seconds": member.unseen_seconds,
        **{name: getattr(progress, name, None) for name in Progress.model_fields},
        "bytes_up": member.traffic.up,
        "bytes_down": member.traffic.down,
    }

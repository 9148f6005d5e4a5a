"""What came out of a finished run, in a text to forward."""

from sqlalchemy.orm import Session

from pubswap_protocol.command_line.amounts import duration_text, size_text
from pubswap_protocol.messages import Evaluation, Role
from pubswap_server.database.tables import RunRow
from pubswap_server.runs import events, history, members, runs


def read_summary(session: Session, run: RunRow) -> str:
    """The summary of a run that is finished."""
    settings = runs.settings_of(run)
    clients = [each for each in members.views(session, run.id) if each.role is Role.CLIENT]
    took = events.last_at(session, run.id, ("aggregated",)) - run.created_at
    sent, received = (
        sum(getattr(each.traffic, way) for each in clients) // max(1, len(clients))
        for way in ("up", "down")
    )
    lines = [
        f"{run.name} is finished: {len(clients)} organisations trained {runs.model_of(run).source} "
        f"for {run.round} rounds of {settings.local_steps} steps by {settings.method}.",
        *_scores(*history.first_and_last_evaluation(session, run.id)),
        f"It took {duration_text(took.total_seconds())} from its creation, and each organisation "
        f"sent {size_text(sent)} and received {size_text(received)} on average.",
        f"The adapter: pubswap run export {run.name} --out adapter",
    ]
    return "\n".join(lines)


def _scores(first: Evaluation | None, last: Evaluation | None) -> list[str]:
    if first is None or last is None:
        return ["Nobody evaluated it."]
    lines = [
        f"pass@1 on {last.problems} test problems: {first.pass_at_1:.3f} before, "
        f"{last.pass_at_1:.3f} after."
    ]
    if len(last.by_topic) > 1:
        lines += [
            f"  {topic}: {first.by_topic.get(topic, 0.0):.3f} before, {share:.3f} after"
            for topic, share in sorted(last.by_topic.items())
        ]
    return lines

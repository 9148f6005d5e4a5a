"""A finished run's results, as text to forward."""

from sqlalchemy.orm import Session

from pubswap_protocol.command_line.amounts import duration_text, size_text
from pubswap_protocol.messages import Role
from pubswap_server.database.tables import RunRow
from pubswap_server.runs import events, history, members


def read_summary(session: Session, run: RunRow) -> str:
    """A finished run's results, as text to forward."""
    settings = run.settings
    clients = [each for each in members.views(session, run.id) if each.role is Role.CLIENT]
    took = events.last_at(session, run.id, ("aggregated",)) - run.created_at
    sent, received = (
        sum(getattr(each.traffic, way) for each in clients) // max(1, len(clients))
        for way in ("up", "down")
    )
    first, last = history.first_and_last_evaluation(session, run.id)
    scores = "It was not evaluated. An evaluator that enrols now still measures all rounds."
    if first is not None and last is not None:
        scores = (
            f"pass@1 on {last.problems} test problems: {first.pass_at_1:.3f} before, "
            f"{last.pass_at_1:.3f} after."
        )
        for topic, share in sorted(last.by_topic.items()) if len(last.by_topic) > 1 else ():
            first_share = first.by_topic.get(topic, 0.0)
            scores += f"\n  {topic}: {first_share:.3f} before, {share:.3f} after"
    return (
        f"{run.name} is finished: {len(clients)} organisations trained {run.model.source} "
        f"for {run.round} rounds of {settings.local_steps} steps by {settings.method}.\n"
        f"{scores}\n"
        f"It took {duration_text(took.total_seconds())} from its creation, and each organisation "
        f"sent {size_text(sent)} and received {size_text(received)} on average.\n"
        f"The adapter: pubswap run export {run.name} --out adapter"
    )

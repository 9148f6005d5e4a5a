"""pass@1 from the base model to the last round, in words."""

from collections.abc import Iterator, Sequence

from pubswap_client.state.history import HeldOutScore
from pubswap_protocol.messages import Evaluation, WholeRun


def measured(run: WholeRun) -> list[tuple[int, Evaluation]]:
    """The rounds that were evaluated, in order; 0 is the base model."""
    return [(each.round, each.evaluation) for each in run.rounds if each.evaluation is not None]


def lines(run: WholeRun) -> Iterator[str]:
    """The gain, overall and by topic, the best round, and what is not known yet."""
    found = measured(run)
    if len(found) < 2:
        yield "No pass@1 is known after a round: the run has no evaluator, or it is not done yet."
        return
    (_, base), (last, final) = found[0], found[-1]
    best, highest = max(((n, each.pass_at_1) for n, each in found[1:]), key=lambda one: one[1])
    yield (
        f"pass@1 {change_text(base.pass_at_1, final.pass_at_1)} from the base model to round "
        f"{last}, on {final.problems} problems; best {highest:.3f} after round {best}."
    )
    for topic, before, after in by_topic(base, final):
        yield f"  {topic}: {change_text(before, after)}"
    if last < run.round:
        yield f"Round {run.round} is not evaluated yet; `pubswap client status` will say it."


def by_topic(base: Evaluation, final: Evaluation) -> list[tuple[str, float, float]]:
    """Both scores of each topic; nothing if there is but one, which is the whole."""
    topics = sorted(base.by_topic.keys() & final.by_topic.keys())
    if len(topics) < 2:
        return []
    return [(topic, base.by_topic[topic], final.by_topic[topic]) for topic in topics]


def held_out_text(scores: Sequence[HeldOutScore]) -> str:
    """From the first adapter that was measured on the organisation's own problems to the last."""
    first, last = scores[0], scores[-1]
    if len(scores) == 1:
        said = f"{last.pass_at_1:.3f} after round {last.round}"
    else:
        change = change_text(first.pass_at_1, last.pass_at_1)
        said = f"{change} from round {first.round} to round {last.round}"
    return f"{said}, on {last.problems} held-out problems of our own"


def change_text(before: float, after: float) -> str:
    return f"{before:.3f} → {after:.3f} ({after - before:+.3f})"

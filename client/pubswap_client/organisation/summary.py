"""A run's outcome: pass@1 from the base model to the last round in words, and `summary.html`.

The page has no scripts and needs no other files, so it can be forwarded.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from jinja2 import Environment, PackageLoader, StrictUndefined

from pubswap_client.state.history import HeldOutScore, RoundFigures
from pubswap_protocol import __version__
from pubswap_protocol.bounds import plain
from pubswap_protocol.command_line.amounts import duration_text, interval_text
from pubswap_protocol.messages import Evaluation, RunState, WholeRun

MAX_POINTS = 1000
LEFT, RIGHT, TOP, BOTTOM = 46, 632, 8, 196  # the axes' ends in the page's plots


def measured(run: WholeRun) -> list[tuple[int, Evaluation]]:
    """The rounds that were evaluated, in order; 0 is the base model."""
    return [(each.round, each.evaluation) for each in run.rounds if each.evaluation is not None]


def lines(run: WholeRun) -> Iterator[str]:
    """The gain, overall and by topic, the best round, and what is not known yet."""
    scores = measured(run)
    if len(scores) < 2:
        later = " One that enrols now still measures all rounds."
        yield (
            "No round has a pass@1: the run has no evaluator, or it is not done yet."
            f"{'' if run.state is RunState.CANCELLED else later}"
        )
        return
    (_, base), (last, final) = scores[0], scores[-1]
    best, highest = max(((n, each.pass_at_1) for n, each in scores[1:]), key=lambda one: one[1])
    yield (
        f"pass@1 {change_text(base.pass_at_1, final.pass_at_1)} from the base model to round "
        f"{last}, on {final.problems} problems "
        f"(95 %: {interval_text(final.pass_at_1, final.problems)}); best {highest:.3f} after round "
        f"{best}."
    )
    for topic, before, after in by_topic(base, final):
        yield f"  {plain(topic)}: {change_text(before, after)}"
    if last < run.round:
        yield f"Round {run.round} is not evaluated yet; `pubswap client status` will show it."


def by_topic(base: Evaluation, final: Evaluation) -> list[tuple[str, float, float]]:
    """Both scores of each topic; empty for a single topic, which is the whole set."""
    topics = sorted(base.by_topic.keys() & final.by_topic.keys())
    if len(topics) < 2:
        return []
    return [(topic, base.by_topic[topic], final.by_topic[topic]) for topic in topics]


def comparable(scores: Sequence[HeldOutScore]) -> list[HeldOutScore]:
    """Scores on the problems that are held out now, without rounds undone by a rollback."""
    retained: list[HeldOutScore] = []
    for score in scores:
        if score.digest == scores[-1].digest:
            while retained and retained[-1].round >= score.round:
                retained.pop()
            retained.append(score)
    return retained


def held_out_text(scores: Sequence[HeldOutScore]) -> str:
    """The change on our own problems, from the first measured adapter to the last."""
    scores = comparable(scores)
    first, last = scores[0], scores[-1]
    if len(scores) == 1:
        text = f"{last.pass_at_1:.3f} after round {last.round}"
    else:
        change = change_text(first.pass_at_1, last.pass_at_1)
        text = f"{change} from round {first.round} to round {last.round}"
    interval = interval_text(last.pass_at_1, last.problems)
    return f"{text}, on {last.problems} held-out problems of our own (95 %: {interval})"


def change_text(before: float, after: float) -> str:
    return f"{before:.3f} → {after:.3f} ({after - before:+.3f})"


def page(
    run: WholeRun,
    member: str,
    history: Sequence[RoundFigures],
    held_out: Sequence[HeldOutScore] = (),
) -> str:
    """The whole page. Text from elsewhere is escaped."""
    scores, own_scores = measured(run), comparable(held_out)
    rewards = [reward for each in history for reward in each.rewards]
    pages = Environment(
        loader=PackageLoader("pubswap_client", "organisation"),
        autoescape=True,
        undefined=StrictUndefined,
    )
    return pages.get_template("summary.html").render(
        run=run,
        member=member,
        version=__version__,
        outcome=next(lines(run)),
        scores=SummaryPlot.of("round", [(number, each.pass_at_1) for number, each in scores]),
        last=scores[-1][0] if scores else 0,
        topics=[
            (topic, f"{before:.3f}", f"{after:.3f}", f"{after - before:+.3f}")
            for topic, before, after in (by_topic(scores[0][1], scores[-1][1]) if scores else [])
        ],
        held_out=SummaryPlot.of("round", [(each.round, each.pass_at_1) for each in own_scores]),
        held_out_text=held_out_text(own_scores) if own_scores else "",
        rewards=SummaryPlot.of("step", [(n, r) for n, r in enumerate(rewards, 1) if r is not None]),
        rounds=[_row(each) for each in history],
    )


def _row(past: RoundFigures) -> list[str]:
    figures = (past.reward, past.kl, past.response_tokens)
    numbers = ["" if value is None else f"{value:.3g}" for value in figures]
    round_ = f"{past.round} (late)" if past.late else str(past.round)
    return [round_, *numbers, duration_text(past.seconds), duration_text(past.waited)]


@dataclass(frozen=True)
class SummaryPlot:
    """A line plot; the ends of both axes are labelled."""

    across: str
    first: int
    last: int
    low: str
    high: str
    path: str

    @classmethod
    def of(cls, across: str, points: Sequence[tuple[int, float]]) -> Self | None:
        """The curve through some points in order, thinned out; None without points."""
        if not points:
            return None
        points = points[:: len(points) // MAX_POINTS + 1]
        xs, ys = [x for x, _ in points], [y for _, y in points]
        low, high = min(ys), max(ys)
        coordinates = [
            f"{_scaled(x, xs[0], xs[-1], LEFT, RIGHT):.1f},{_scaled(y, low, high, BOTTOM, TOP):.1f}"
            for x, y in points
        ]
        return cls(across, xs[0], xs[-1], f"{low:.3f}", f"{high:.3f}", " L".join(coordinates))


def _scaled(value: float, low: float, high: float, begin: float, end: float) -> float:
    share = (value - low) / (high - low) if high > low else 0.5
    return begin + share * (end - begin)

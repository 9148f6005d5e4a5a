"""A run's outcome: pass@1 from the base model to the last round in words, and `summary.html`.

The page has no scripts and needs no other files, so it can be forwarded.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Self

from jinja2 import Environment, PackageLoader, StrictUndefined

from pubswap_client.organisation.report import (
    MemberReport,
    change_text,
    comparable,
    held_out_text,
)
from pubswap_client.state.history import RoundFigures
from pubswap_protocol import __version__
from pubswap_protocol.bounds import plain
from pubswap_protocol.command_line.amounts import duration_text, interval_text
from pubswap_protocol.command_line.curves import svg_points
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


def page(run: WholeRun, report: MemberReport, state: Path) -> str:
    """The whole page, with a command for the folder `state`. Text from elsewhere is escaped."""
    scores, own_scores = measured(run), comparable(report.held_out)
    rewards = [reward for each in report.history for reward in each.rewards]
    pages = Environment(
        loader=PackageLoader("pubswap_client", "organisation"),
        autoescape=True,
        undefined=StrictUndefined,
    )
    return pages.get_template("summary.html").render(
        run=run,
        member=report.member.name,
        updates=run.rounds[-1].updates if run.rounds else 0,
        traffic=report.bytes_text,
        audit=f"pubswap client audit show --state {quote(str(state))}",
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
        rounds=[_row(each) for each in report.history],
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
    line: str

    @classmethod
    def of(cls, across: str, points: Sequence[tuple[int, float]]) -> Self | None:
        """The curve through some points in order, thinned out; None without points."""
        if not points:
            return None
        points = points[:: len(points) // MAX_POINTS + 1]
        (first, _), (last, _) = points[0], points[-1]
        low, high = (f"{end([y for _, y in points]):.3f}" for end in (min, max))
        line = svg_points(points, (LEFT, RIGHT), (BOTTOM, TOP))
        return cls(across, first, last, low, high, line)

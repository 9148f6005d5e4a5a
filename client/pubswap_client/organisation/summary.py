"""What a run came to: pass@1 from the base model to the last round in words, and `summary.html`.

That is a page without scripts or other files, to be forwarded.
"""

from collections.abc import Iterator, Sequence
from html import escape

from pubswap_client.state.history import HeldOutScore, RoundFigures
from pubswap_protocol import __version__
from pubswap_protocol.bounds import plain
from pubswap_protocol.command_line.amounts import duration_text
from pubswap_protocol.messages import Evaluation, WholeRun

_STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem }
h1, p { overflow-wrap: anywhere } div { overflow-x: auto }
table { border-collapse: collapse } td, th { padding: .2rem .8rem; text-align: right }
th:first-child, td:first-child { text-align: left } tr { border-bottom: 1px solid #8884 }
svg { width: 100%; height: auto } svg text { font: 11px system-ui; fill: currentColor }
svg path { fill: none; stroke: currentColor; stroke-width: 2 } svg line { stroke: #8886 }
"""
MOST_POINTS = 1000
WIDTH, HEIGHT, LEFT, BOTTOM = 640, 220, 46, 24


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
        yield f"  {plain(topic)}: {change_text(before, after)}"
    if last < run.round:
        yield f"Round {run.round} is not evaluated yet; `pubswap client status` will say it."


def by_topic(base: Evaluation, final: Evaluation) -> list[tuple[str, float, float]]:
    """Both scores of each topic; nothing if there is but one, which is the whole."""
    topics = sorted(base.by_topic.keys() & final.by_topic.keys())
    if len(topics) < 2:
        return []
    return [(topic, base.by_topic[topic], final.by_topic[topic]) for topic in topics]


def comparable(scores: Sequence[HeldOutScore]) -> list[HeldOutScore]:
    """Those on the problems that are held out now, without rounds that the run went back before."""
    kept: list[HeldOutScore] = []
    for each in scores:
        if each.digest == scores[-1].digest:
            while kept and kept[-1].round >= each.round:
                kept.pop()
            kept.append(each)
    return kept


def held_out_text(scores: Sequence[HeldOutScore]) -> str:
    """From the first adapter that was measured on the organisation's own problems to the last."""
    scores = comparable(scores)
    first, last = scores[0], scores[-1]
    if len(scores) == 1:
        said = f"{last.pass_at_1:.3f} after round {last.round}"
    else:
        change = change_text(first.pass_at_1, last.pass_at_1)
        said = f"{change} from round {first.round} to round {last.round}"
    return f"{said}, on {last.problems} held-out problems of our own"


def change_text(before: float, after: float) -> str:
    return f"{before:.3f} → {after:.3f} ({after - before:+.3f})"


def page(
    run: WholeRun,
    member: str,
    history: Sequence[RoundFigures],
    held_out: Sequence[HeldOutScore] = (),
) -> str:
    """The whole page. Text from elsewhere is inert in it."""
    return "\n".join(_parts(run, member, history, held_out)) + "\n"


def _parts(
    run: WholeRun,
    member: str,
    history: Sequence[RoundFigures],
    held_out: Sequence[HeldOutScore],
) -> Iterator[str]:
    title = escape(f"{run.name}: {run.state} after {run.round} of {run.settings.rounds} rounds")
    yield f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<style>{_STYLE}</style><main><h1>{title}</h1>"
    yield f"<p>Base model: {escape(run.model.source)}. Method: {run.settings.method}. "
    yield f"Organisations: {run.settings.clients}, of which this is {escape(member)}.</p>"
    scores = measured(run)
    yield "<h2>pass@1 of the global adapter</h2>"
    yield f"<p>{escape(next(lines(run)))}</p>"
    yield _plot("round", [(n, each.pass_at_1) for n, each in scores])
    if topics := by_topic(scores[0][1], scores[-1][1]) if scores else []:
        yield _table(
            ["topic", "base model", f"round {scores[-1][0]}", "change"],
            [
                [topic, f"{before:.3f}", f"{after:.3f}", f"{after - before:+.3f}"]
                for topic, before, after in topics
            ],
        )
    if held_out:
        yield f"<h2>pass@1 on held-out problems of {escape(member)}</h2>"
        yield f"<p>{escape(held_out_text(held_out))}.</p>"
        yield _plot("round", [(each.round, each.pass_at_1) for each in comparable(held_out)])
    rewards = [reward for each in history for reward in each.rewards]
    yield f"<h2>Reward of {escape(member)} on its own problems</h2>"
    yield _plot("step", [(n, r) for n, r in enumerate(rewards, 1) if r is not None])
    yield _table(
        ["round", "reward", "KL", "response length", "training", "waiting"],
        [
            [
                *(str(each.round), _number(each.reward), _number(each.kl)),
                *(
                    _number(each.response_tokens),
                    duration_text(each.seconds),
                    duration_text(each.waited),
                ),
            ]
            for each in history
        ],
    )
    yield f"<p>Written by PubSwap {__version__}.</p></main></html>"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def row(tag: str, cells: Sequence[str]) -> str:
        scope = ' scope="col"' * (tag == "th")
        return "<tr>" + "".join(f"<{tag}{scope}>{escape(each)}</{tag}>" for each in cells) + "</tr>"

    body = "".join(row("td", cells) for cells in rows)
    return (
        '<div tabindex="0" role="group" aria-label="Table">'
        f"<table>{row('th', headings)}{body}</table></div>"
    )


def _plot(across: str, points: Sequence[tuple[int, float]]) -> str:
    """A line over its axes; the ends of both are named."""
    if not points:
        return "<p>Not measured.</p>"
    points = points[:: len(points) // MOST_POINTS + 1]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low, high = min(ys), max(ys)

    def place(value: float, ends: tuple[float, float], room: tuple[float, float]) -> float:
        share = (value - ends[0]) / (ends[1] - ends[0]) if ends[1] > ends[0] else 0.5
        return room[0] + share * (room[1] - room[0])

    bottom, right = HEIGHT - BOTTOM, WIDTH - 8
    places = [
        f"{place(x, (xs[0], xs[-1]), (LEFT, right)):.1f},{place(y, (low, high), (bottom, 8)):.1f}"
        for x, y in points
    ]
    words = f"from {low:.3f} to {high:.3f} by {across}"
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{words}">'
        f'<line x1="{LEFT}" y1="{bottom}" x2="{right}" y2="{bottom}"/>'
        f'<line x1="{LEFT}" y1="8" x2="{LEFT}" y2="{bottom}"/>'
        f'<path d="M{" L".join(places)}"/>'
        f'<text x="0" y="16">{high:.3f}</text><text x="0" y="{bottom}">{low:.3f}</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 6}">{across} {xs[0]}</text>'
        f'<text x="{right}" y="{HEIGHT - 6}" text-anchor="end">{across} {xs[-1]}</text></svg>'
    )

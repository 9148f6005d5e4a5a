"""Who holds which topics: the paper's bubble plot (its appendix, "Client Dataset split")."""

from pathlib import Path

from pubswap_client.data.manifest import Manifest

TOPICS = "topics.png"
# The paper quantises by 100 samples; a small set would have no bubble left.
_UNITS = (100, 10, 1)
_LARGEST = 600.0  # points², the area of the largest bubble
_MOST_NAMES = 24


def unit_for(largest: int) -> int:
    """The samples that one step of a bubble's area stands for; `largest` is the greatest count."""
    return next(unit for unit in _UNITS if largest >= 5 * unit or unit == 1)


def draw_topics(manifest: Manifest, path: Path) -> None:
    """Draw topics by clients, with bubbles whose area is the number of problems, in steps."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    topics = manifest.topics()
    names = [name.removesuffix(".jsonl") for name in manifest.files]
    counts = [[file.topics.get(topic, 0) for topic in topics] for file in manifest.files.values()]
    largest = max(max(row) for row in counts)
    unit = unit_for(largest)
    width = min(4.0 + 0.45 * len(topics), 24.0)
    figure = Figure(figsize=(width, 2.2 + 0.5 * len(names)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for y, row in enumerate(counts):
        steps = [round(count / unit) for count in row]
        areas = [_LARGEST * step * unit / largest for step in steps]
        axes.scatter(range(len(topics)), [y] * len(topics), s=areas, alpha=0.7)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.margins(x=0.6 / len(topics), y=0.15)
    if len(topics) <= _MOST_NAMES:
        axes.set_xticks(range(len(topics)), topics, rotation=40, ha="right")
    else:
        axes.set_xlabel("topic number, as `pubswap data show` lists them")
    axes.set_title(f"Problems by topic, in steps of {unit}")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150, format="png")

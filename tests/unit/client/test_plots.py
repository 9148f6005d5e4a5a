"""The heat map that the client draws."""

from pathlib import Path

from pubswap_client import plots


def test_a_heat_map_has_the_names_as_they_are(tmp_path: Path) -> None:
    """Matplotlib must not parse a dollar sign as a formula; many columns have none."""
    odd = [r"from $5 to \\$x_{$", r"$\\foo$"]
    figure = plots.heat_map(["a"], odd, [[1, 2]], [["1", "2"]], title="", unit="problems")
    plots.save(figure, tmp_path / "few.png")
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == odd
    many = [str(number) for number in range(300)]
    figure = plots.heat_map(["a"], many, [range(300)], [many], title="", unit="problems")
    plots.save(figure, tmp_path / "many.png")
    assert figure.get_figwidth() <= 24 and not figure.axes[0].texts

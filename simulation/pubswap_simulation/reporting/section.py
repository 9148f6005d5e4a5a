"""The results of one comparison by row, tau and seed: one recipe, with all other axes fixed."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from pubswap_client.recipes.tables import Value
from pubswap_protocol.errors import InvalidSettings
from pubswap_simulation.reporting.methods import (
    NAMED,
    Row,
    edited,
    is_of_method,
    references,
    row_of,
    value_on,
)
from pubswap_simulation.results import Result, read_results

Cell = tuple[Row, int]  # a row at a tau
# A seed's results by the client that trains: None, or each for `alone`.
BySeed = Mapping[int, Mapping[str | None, Result]]
Problem = tuple[tuple[str, Value | None], ...]
Measure = Callable[[Result], float | None]


def final(result: Result) -> float:
    """pass@1 of the last round's adapter."""
    return result.final


@dataclass(frozen=True)
class Section:
    """One comparison: its cells in the order of the tables. `problem` has the shared values on all
    axes that are not of the method."""

    recipe: str
    problem: Problem
    cells: Mapping[Cell, BySeed]
    notes: tuple[str, ...]

    @property
    def title(self) -> str:
        """The recipe and the problem."""
        axes = [
            f"{axis} as in the recipe" if value is None else f"{axis} = {value}"
            for axis, value in self.problem
        ]
        return ", ".join([self.recipe, *axes])

    @property
    def taus(self) -> list[int]:
        """Every tau that any row has."""
        return sorted({tau for _, tau in self.cells})

    @property
    def rows(self) -> list[Row]:
        """Every row, in the order of the tables."""
        return sorted({row for row, _ in self.cells}, key=lambda row: row.order)

    @property
    def runs(self) -> Iterator[tuple[Row, Result]]:
        """Every result, and its row."""
        for cell in self.cells:
            yield from ((cell[0], result) for result in self.results(cell))

    def results(self, cell: Cell) -> list[Result]:
        """All results of a row at a tau."""
        return [one for clients in self.cells[cell].values() for one in clients.values()]

    def values(self, cell: Cell, measure: Measure) -> dict[int, float]:
        """A measure by seed, averaged over the clients if each trains alone.

        Seeds in which a client has none are left out.
        """
        by_seed = self.cells.get(cell, {})
        clients = {client for results in by_seed.values() for client in results}
        found = {
            seed: [value for result in results.values() if (value := measure(result)) is not None]
            for seed, results in by_seed.items()
        }
        return {
            seed: fmean(values) for seed, values in found.items() if len(values) == len(clients)
        }

    def base(self, measure: Measure) -> dict[int, float]:
        """A measure by seed, averaged over all results: for those of the base model."""
        found = defaultdict[int, list[float]](list)
        for _, result in self.runs:
            if (value := measure(result)) is not None:
                found[result.seed].append(value)
        return {seed: fmean(values) for seed, values in sorted(found.items())}


def read_sections(store: Path) -> list[Section]:
    """A store's comparisons; raises InvalidSettings if it holds no result."""
    if not store.is_dir():
        raise InvalidSettings(f"{store} is not a folder; name the --out of `pubswap simulate`.")
    if comparisons := sections(read_results(store)):
        return comparisons
    raise InvalidSettings(
        f"{store} holds no complete run; `pubswap simulate RECIPE --out {store}` makes one, "
        "and continues those that were interrupted."
    )


def sections(results: Iterable[Result]) -> list[Section]:
    """The comparisons in a store, in the order of recipe and problem.

    Raises InvalidSettings for a result that was never evaluated after training.
    """
    by_recipe: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        _check(result)
        by_recipe[result.recipe].append(result)
    return [
        section
        for recipe, recipe_results in sorted(by_recipe.items())
        for section in _of_recipe(recipe, recipe_results)
    ]


def _check(result: Result) -> None:
    rounds = [summary.round for summary in result.run.rounds if summary.evaluation]
    if len(rounds) < 2 or rounds[0] != 0:
        raise InvalidSettings(
            f"The result of recipe {result.recipe!r}, setting {result.setting}, seed {result.seed} "
            f"has evaluations of the rounds {rounds} only; the base model's (round 0) and a "
            "trained round's are needed. Delete its folder in the store and simulate it again."
        )


def _of_recipe(recipe: str, results: Sequence[Result]) -> Iterator[Section]:
    axes = {axis for result in results for axis in result.setting} | edited(results)
    usual = references(results, axes)
    by_problem: dict[Problem, list[Result]] = defaultdict(list)
    for result in results:
        by_problem[_problem(result, axes)].append(result)
    for problem, alike in sorted(by_problem.items(), key=lambda item: str(item[0])):
        yield _section(recipe, problem, alike, usual)


def _problem(result: Result, axes: set[str]) -> Problem:
    others = sorted(axis for axis in axes - NAMED if not is_of_method(axis))
    problem = [(axis, value_on(result, axis)) for axis in others]
    if axes & {"rounds", "total_steps"}:
        settings = result.run.settings
        problem.append(("total steps", settings.rounds * settings.local_steps))
    return tuple(problem)


def _section(
    recipe: str, problem: Problem, results: Iterable[Result], usual: Mapping[str, Value | None]
) -> Section:
    cells: dict[Cell, dict[int, dict[str | None, Result]]] = {}
    left_out: Counter[Cell] = Counter()
    judged: Counter[str] = Counter()
    for result in sorted(results, key=lambda result: result.seed):
        cell = row_of(result, usual), result.run.settings.local_steps
        clients = cells.setdefault(cell, {}).setdefault(result.seed, {})
        left_out[cell] += result.client in clients
        clients.setdefault(result.client, result)
        judged[str(result.run.verifier_version)] += 1
    notes = [
        f"{row.label}, τ = {tau}: {count} more results of the same seeds are left out, because "
        "they differ in no setting that matters here"
        for (row, tau), count in left_out.items()
        if count
    ]
    if len(judged) > 1:
        counts = ", ".join(f"{count} by {version}" for version, count in sorted(judged.items()))
        notes.append(
            f"these results are judged by several versions of a verifier's rules: {counts}"
        )
    ordered = sorted(cells.items(), key=lambda item: (item[0][1], item[0][0].order))
    return Section(recipe, problem, dict(ordered), tuple(notes))

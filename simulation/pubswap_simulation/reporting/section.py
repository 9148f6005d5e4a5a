"""The results of one comparison by row, tau and seed: one recipe, with all other axes fixed."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import fmean

from pubswap_client.recipes.tables import Value
from pubswap_protocol.errors import InvalidSettings
from pubswap_simulation.reporting.methods import (
    BASE,
    NAMED,
    Arm,
    edited,
    is_of_method,
    method_of,
    references,
    value_on,
)
from pubswap_simulation.results import Result

# A seed's results: one, or one for each client that trains alone.
Cell = Mapping[int, tuple[Result, ...]]
Cells = dict[Arm, dict[int, Cell]]
Metric = Callable[[Result], float | None]
Problem = tuple[tuple[str, Value | None], ...]


@dataclass(frozen=True)
class Section:
    """One comparison. `problem` has the shared values on all axes that are not of the method."""

    recipe: str
    problem: Problem
    cells: Cells
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
        return sorted({tau for row in self.cells.values() for tau in row})

    @property
    def methods(self) -> list[Arm]:
        """The rows in the order of the tables."""
        return _ordered(self.cells)

    @property
    def runs(self) -> list[tuple[Arm, Result]]:
        """Every result once, and its row."""
        return [
            (method, result)
            for method in self.methods
            if not method.summary and method != BASE
            for _, cell in sorted(self.cells[method].items())
            for _, results in sorted(cell.items())
            for result in results
        ]

    @property
    def results(self) -> list[Result]:
        """Every result once."""
        return [result for _, result in self.runs]

    def cell(self, method: Arm, tau: int) -> Cell:
        """The results of a row at a tau, by seed; empty if there are none."""
        return self.cells.get(method, {}).get(tau, {})

    def values(self, method: Arm, tau: int, metric: Metric) -> dict[int, float]:
        """A metric by seed, averaged over the clients if each trains alone."""
        return by_seed(self.cell(method, tau), metric)

    @property
    def federated(self) -> Iterator[tuple[Arm, int, list[Result]]]:
        """The results of each federated row at each tau; FedProx only with the best mu."""
        for method in self.methods:
            if method.kind == "federated" and not method.detail:
                for tau, cell in sorted(self.cells[method].items()):
                    yield method, tau, [one for of_seed in cell.values() for one in of_seed]


def by_seed(cell: Cell, metric: Metric) -> dict[int, float]:
    """A metric's value for each seed; seeds without one are left out."""
    means = {}
    for seed, results in sorted(cell.items()):
        values = [value for result in results if (value := metric(result)) is not None]
        if values and len(values) == len(results):
            means[seed] = fmean(values)
    return means


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


def _of_recipe(recipe: str, results: list[Result]) -> list[Section]:
    axes = {axis for result in results for axis in result.setting} | edited(results)
    usual = references(results, axes)
    by_problem: dict[Problem, list[Result]] = defaultdict(list)
    for result in results:
        by_problem[_problem(result, axes)].append(result)
    return [
        _section(recipe, problem, problem_results, usual)
        for problem, problem_results in sorted(
            by_problem.items(), key=lambda item: _sorting(item[0])
        )
    ]


def _problem(result: Result, axes: set[str]) -> Problem:
    others = sorted(axis for axis in axes - NAMED if not is_of_method(axis))
    problem = [(axis, value_on(result, axis)) for axis in others]
    if axes & {"rounds", "total_steps"}:
        settings = result.run.settings
        problem.append(("total steps", settings.rounds * settings.local_steps))
    return tuple(problem)


def _sorting(problem: Problem) -> list[tuple[str, float, str]]:
    return [
        (axis, float(value) if isinstance(value, int | float) else 0.0, str(value))
        for axis, value in problem
    ]


def _section(
    recipe: str, problem: Problem, results: list[Result], usual: Mapping[str, Value | None]
) -> Section:
    rows: dict[Arm, dict[int, dict[int, tuple[Result, ...]]]] = {}
    left_out: Counter[tuple[Arm, int]] = Counter()
    for result in results:
        method, tau = method_of(result, usual), result.run.settings.local_steps
        cell = rows.setdefault(method, {}).setdefault(tau, {})
        if result.seed in cell:
            left_out[method, tau] += 1
        else:
            cell[result.seed] = (result,)
    cells: Cells = {method: dict(row) for method, row in rows.items()}
    notes = [
        f"{method.label}, τ = {tau}: {count} more results of the same seeds are left out, because "
        "they differ in no setting that matters here"
        for (method, tau), count in sorted(left_out.items(), key=lambda item: item[0][0].order)
    ]
    judged = Counter(str(result.run.verifier_version) for result in results)
    if len(judged) > 1:
        counts = ", ".join(f"{count} by {version}" for version, count in sorted(judged.items()))
        notes.append(
            f"these results are judged by several versions of a verifier's rules: {counts}"
        )
    cells |= _summaries(cells) | _base(cells)
    return Section(recipe, problem, cells, tuple(notes))


def _summaries(cells: Cells) -> Cells:
    """The summary rows. For clients alone: their mean, over the seeds that every client has. For
    FedProx: the mu with the best mean final pass@1 at each tau, on the seeds that all have."""
    rows: Cells = {}
    members: dict[Arm, list[Arm]] = defaultdict(list)
    for method in _ordered(cells):
        if method.detail:
            members[replace(method, mu=None, client=None)].append(method)
    for whole, detailed in members.items():
        alone = whole.kind == "alone"
        for tau in sorted({tau for method in detailed for tau in cells[method]}):
            parts = [cells[method].get(tau, {}) for method in detailed]
            parts = parts if alone else [cell for cell in parts if cell]
            seeds = sorted(set[int].intersection(*map(set, parts)))
            if seeds and alone:
                cell = {seed: tuple(one for part in parts for one in part[seed]) for seed in seeds}
                rows.setdefault(whole, {})[tau] = cell
            elif seeds:
                rows.setdefault(whole, {})[tau] = max(
                    parts, key=lambda cell: fmean(one.final for seed in seeds for one in cell[seed])
                )
    return rows


def _base(cells: Cells) -> Cells:
    """The base model's row, from all results at a tau; they agree unless the test sets differ."""
    row: dict[int, dict[int, tuple[Result, ...]]] = defaultdict(dict)
    for method in _ordered(cells):
        for tau, cell in cells[method].items():
            for seed, results in cell.items():
                row[tau][seed] = row[tau].get(seed, ()) + results
    return {BASE: dict(row)}


def _ordered(cells: Cells) -> list[Arm]:
    return sorted(cells, key=lambda method: method.order)

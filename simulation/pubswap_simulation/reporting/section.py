"""The results of one comparison, by row, tau and seed: one recipe, one value on each other axis."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from pubswap_protocol.errors import InvalidSettings
from pubswap_simulation.reporting.methods import (
    BASE,
    NAMED,
    Method,
    is_of_method,
    method_of,
    value_on,
)
from pubswap_simulation.results import Result, Value

# A seed's results: one, or one for each client that trains alone.
Cell = Mapping[int, tuple[Result, ...]]
Cells = dict[Method, dict[int, Cell]]
Metric = Callable[[Result], float | None]
Problem = tuple[tuple[str, Value | None], ...]


@dataclass(frozen=True)
class Section:
    """One comparison. `problem` is what its results share on the axes that are no method's."""

    recipe: str
    problem: Problem
    cells: Cells
    notes: tuple[str, ...]

    @property
    def title(self) -> str:
        """The recipe and what it was varied in."""
        told = [
            f"{axis} as in the recipe" if value is None else f"{axis} = {value}"
            for axis, value in self.problem
        ]
        return ", ".join([self.recipe, *told])

    @property
    def taus(self) -> list[int]:
        """All tau that any row has."""
        return sorted({tau for row in self.cells.values() for tau in row})

    @property
    def methods(self) -> list[Method]:
        """The rows in the order of the tables."""
        return sorted(self.cells, key=lambda method: method.order)

    @property
    def runs(self) -> list[tuple[Method, Result]]:
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

    def cell(self, method: Method, tau: int) -> Cell:
        """The results of a row at a tau, by seed; empty if there are none."""
        return self.cells.get(method, {}).get(tau, {})

    def values(self, method: Method, tau: int, metric: Metric) -> dict[int, float]:
        """What a metric is by seed, averaged over clients where each trains alone."""
        return by_seed(self.cell(method, tau), metric)

    def tuned_mu(self, method: Method, tau: int) -> float | None:
        """The mu behind a FedProx row that stands for all."""
        for results in self.cell(method, tau).values():
            return results[0].run.settings.fedprox.mu
        return None


def by_seed(cell: Cell, metric: Metric) -> dict[int, float]:
    """A metric's value for each seed; seeds for which it means nothing are left out."""
    found = {}
    for seed, results in sorted(cell.items()):
        values = [metric(result) for result in results]
        if values and not any(value is None for value in values):
            found[seed] = fmean(value for value in values if value is not None)
    return found


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
        for recipe, theirs in sorted(by_recipe.items())
        for section in _of_recipe(recipe, theirs)
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
    axes = {axis for result in results for axis in result.setting}
    by_problem: dict[Problem, list[Result]] = defaultdict(list)
    for result in results:
        by_problem[_problem(result, axes)].append(result)
    return [
        _section(recipe, problem, theirs, axes)
        for problem, theirs in sorted(by_problem.items(), key=lambda item: _ordered(item[0]))
    ]


def _problem(result: Result, axes: set[str]) -> Problem:
    others = sorted(axis for axis in axes - NAMED if not is_of_method(axis))
    problem = [(axis, value_on(result, axis)) for axis in others]
    if axes & {"rounds", "total_steps"}:
        settings = result.run.settings
        problem.append(("total steps", settings.rounds * settings.local_steps))
    return tuple(problem)


def _ordered(problem: Problem) -> list[tuple[str, float, str]]:
    return [
        (axis, float(value) if isinstance(value, int | float) else 0.0, str(value))
        for axis, value in problem
    ]


def _section(recipe: str, problem: Problem, results: list[Result], axes: set[str]) -> Section:
    found: dict[Method, dict[int, dict[int, tuple[Result, ...]]]] = {}
    left_out: Counter[tuple[Method, int]] = Counter()
    for result in results:
        method, tau = method_of(result, axes), result.run.settings.local_steps
        cell = found.setdefault(method, {}).setdefault(tau, {})
        if result.seed in cell:
            left_out[method, tau] += 1
        else:
            cell[result.seed] = (result,)
    cells: Cells = {method: dict(row) for method, row in found.items()}
    notes = _incomplete(cells) + [
        f"{method.label}, τ = {tau}: {count} more results of the same seeds are left out, which "
        "differ in nothing that matters here"
        for (method, tau), count in sorted(left_out.items(), key=lambda item: item[0][0].order)
    ]
    cells |= _alone(cells) | _tuned(cells) | _base(cells)
    return Section(recipe, problem, cells, tuple(notes))


def _incomplete(cells: Cells) -> list[str]:
    """Which settings have fewer seeds than others."""
    wanted = {seed for row in cells.values() for cell in row.values() for seed in cell}
    taus = sorted({tau for row in cells.values() for tau in row})
    return [
        f"{method.label}, τ = {tau}: {len(cell)} of {len(wanted)} seeds; missing "
        + ", ".join(str(seed) for seed in sorted(wanted - cell.keys()))
        for method in sorted(cells, key=lambda method: method.order)
        for tau in taus
        if (cell := cells[method].get(tau, {})).keys() != wanted
        and (cell or (method.kind == "federated" and tau > (method.period or 0)))
    ]


def _alone(cells: Cells) -> Cells:
    """The mean of the clients alone, over the seeds that every client has."""
    parts: dict[Method, list[Method]] = defaultdict(list)
    for method in cells:
        if method.kind == "alone":
            parts[method.summarised()].append(method)
    made: Cells = {}
    for whole, clients in parts.items():
        for tau in sorted({tau for client in clients for tau in cells[client]}):
            theirs = [cells[client].get(tau, {}) for client in clients]
            seeds = set[int].intersection(*(set(cell) for cell in theirs))
            if seeds:
                made.setdefault(whole, {})[tau] = {
                    seed: tuple(result for cell in theirs for result in cell[seed])
                    for seed in sorted(seeds)
                }
    return made


def _tuned(cells: Cells) -> Cells:
    """FedProx with the mu of the best mean final pass@1 at each tau, on the seeds that all have."""
    parts: dict[Method, list[Method]] = defaultdict(list)
    for method in sorted(cells, key=lambda method: method.order):
        if method.name == "fedprox" and method.kind == "federated":
            parts[method.summarised()].append(method)
    made: Cells = {}
    for whole, mus in parts.items():
        for tau in sorted({tau for mu in mus for tau in cells[mu]}):
            theirs = [cells[mu][tau] for mu in mus if tau in cells[mu]]
            common = set[int].intersection(*(set(cell) for cell in theirs))
            if common:
                made.setdefault(whole, {})[tau] = max(theirs, key=lambda cell: _mean(cell, common))
    return made


def _base(cells: Cells) -> Cells:
    """Every result at a tau tells of the base model; they agree unless their test sets differ."""
    made: dict[int, dict[int, tuple[Result, ...]]] = defaultdict(dict)
    for method in sorted(cells, key=lambda method: method.order):
        for tau, cell in cells[method].items():
            for seed, results in cell.items():
                made[tau][seed] = made[tau].get(seed, ()) + results
    return {BASE: dict(made)}


def _mean(cell: Cell, seeds: set[int]) -> float:
    return fmean(final for seed, final in by_seed(cell, _final).items() if seed in seeds)


def _final(result: Result) -> float:
    return result.final

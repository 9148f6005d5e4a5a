"""The results of one comparison by row, tau and seed: one recipe, with all other axes fixed."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TypeVar

from pubswap_client.recipes.tables import Value
from pubswap_protocol.errors import InvalidSettings
from pubswap_simulation.reporting.measures import Measure
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

T = TypeVar("T")
# A seed's results: one, or one for each client that trains alone.
Cell = Mapping[int, tuple[Result, ...]]
Cells = dict[tuple[Arm, int], Cell]  # by row and tau
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
        return sorted({tau for _, tau in self.cells})

    @property
    def methods(self) -> list[Arm]:
        """The rows in the order of the tables."""
        return sorted({method for method, _ in self.cells}, key=lambda method: method.order)

    @property
    def runs(self) -> list[tuple[Arm, Result]]:
        """Every result once, and its row."""
        return [
            (method, result)
            for (method, _), cell in _ordered(self.cells)
            if not method.summary and method != BASE
            for _, results in sorted(cell.items())
            for result in results
        ]

    def values(self, method: Arm, tau: int, measure: Measure) -> dict[int, float]:
        """A measure of a row by seed, averaged over the clients if each trains alone.

        Seeds in which a client has none are left out.
        """
        of, means = measure.base if method == BASE else measure.of, {}
        for seed, results in sorted(self.cells.get((method, tau), {}).items()):
            values = [value for result in results if (value := of(result)) is not None]
            if len(values) == len(results):
                means[seed] = fmean(values)
        return means

    @property
    def federated(self) -> Iterator[tuple[Arm, int, list[Result]]]:
        """The results of each federated row at each tau; FedProx only with the best mu."""
        for (method, tau), cell in _ordered(self.cells):
            if method.kind == "federated" and not method.detail:
                yield method, tau, [one for of_seed in cell.values() for one in of_seed]


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
    runs: defaultdict[tuple[Arm, int], dict[int, tuple[Result, ...]]] = defaultdict(dict)
    left_out: Counter[tuple[Arm, int]] = Counter()
    base: defaultdict[tuple[Arm, int], dict[int, tuple[Result, ...]]] = defaultdict(dict)
    for result in results:
        method, tau = method_of(result, usual), result.run.settings.local_steps
        if result.seed in runs[method, tau]:
            left_out[method, tau] += 1
            continue
        runs[method, tau][result.seed] = (result,)
        base[BASE, tau][result.seed] = (*base[BASE, tau].get(result.seed, ()), result)
    cells: Cells = dict(runs)
    notes = [
        f"{method.label}, τ = {tau}: {count} more results of the same seeds are left out, because "
        "they differ in no setting that matters here"
        for (method, tau), count in _ordered(left_out)
    ]
    judged = Counter(str(result.run.verifier_version) for result in results)
    if len(judged) > 1:
        counts = ", ".join(f"{count} by {version}" for version, count in sorted(judged.items()))
        notes.append(
            f"these results are judged by several versions of a verifier's rules: {counts}"
        )
    best = _best_mu(cells)
    notes += [
        f"{method.label}, τ = {tau}: μ = {chosen.mu:g}, the best on the test set, which favours "
        "FedProx, as in the paper"
        for (method, tau), chosen in best.items()
    ]
    tuned = {(method, tau): cells[chosen, tau] for (method, tau), chosen in best.items()}
    return Section(recipe, problem, cells | _alone(cells) | tuned | base, tuple(notes))


def _alone(cells: Cells) -> Cells:
    """The mean of the clients alone, over the seeds that every client has."""
    clients: dict[Arm, set[Arm]] = defaultdict(set)
    for method, _ in cells:
        if method.kind == "alone":
            clients[replace(method, client=None)].add(method)
    rows: Cells = {}
    for whole, members in clients.items():
        for tau in {tau for method, tau in cells if method in members}:
            parts = [cells.get((one, tau), {}) for one in members]
            for seed in set[int].intersection(*map(set, parts)):
                results = tuple(result for part in parts for result in part[seed])
                rows[whole, tau] = {**rows.get((whole, tau), {}), seed: results}
    return rows


def _best_mu(cells: Cells) -> dict[tuple[Arm, int], Arm]:
    """FedProx with the mu of the best mean final pass@1 at each tau, on the seeds that all have."""
    tried: dict[tuple[Arm, int], list[Arm]] = defaultdict(list)
    for (method, tau), _ in _ordered(cells):
        if method.mu is not None:
            tried[replace(method, mu=None), tau].append(method)
    best = {}
    for (whole, tau), methods in tried.items():
        if seeds := set[int].intersection(*(set(cells[one, tau]) for one in methods)):
            mean = {
                one: fmean(r.final for seed in sorted(seeds) for r in cells[one, tau][seed])
                for one in methods
            }
            best[whole, tau] = max(methods, key=mean.__getitem__)
    return best


def _ordered(by_row: Mapping[tuple[Arm, int], T]) -> list[tuple[tuple[Arm, int], T]]:
    return sorted(by_row.items(), key=lambda item: (item[0][0].order, item[0][1]))

"""What cannot be, though each value is in range: pure rules over a whole recipe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pubswap_client.recipes.keys import known_keys, unknown
from pubswap_client.recipes.sweep import MEMBERS
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.verifiers import check_verifier

if TYPE_CHECKING:
    from pubswap_client.recipes.recipe import Recipe

_NOT_SWEPT = {
    "seed": "seeds are listed in sweep.seeds",
    "rounds": "rounds follow from total_steps and local_steps, which can be axes",
    "name": "a recipe has one name",
    "about": "it changes nothing",
    "sweep.seeds": "seeds are no axis",
    "sweep.grid": "a grid holds no other",
}


def contradictions(recipe: Recipe) -> Iterator[str]:
    """Each thing that is wrong, beginning with its key."""
    yield from _schedule(recipe)
    try:
        check_verifier(recipe.verifier)
    except InvalidSettings as error:
        yield f"verifier: {error.detail}"
    yield from _data(recipe)
    yield from _axes(recipe)


def set_sizes(recipe: Recipe, public: int | None, private: dict[str, int]) -> Iterator[str]:
    """What is wrong with sets of so many problems; `private` is by what the set is called."""
    b = recipe.grpo.prompts_per_step
    if recipe.method == "pubswap" and public is not None and public < b:
        yield f"the public set holds {public} problems, but a step takes {b}"
    for name, size in private.items():
        if size < b:
            yield f"{name} holds {size} problems, but a step takes {b}"


def _schedule(recipe: Recipe) -> Iterator[str]:
    # The paper's period is shorter than a round (section 3.4). One as long would be possible, but
    # leaves one public step just before the mean, which is no coordination of local training.
    if recipe.method == "pubswap" and recipe.swap.period >= recipe.local_steps:
        yield (
            f"swap.period: {recipe.swap.period} is not below local_steps = {recipe.local_steps}, "
            "as the paper has it; use a shorter period, or method = 'fedavg' for no public steps"
        )


def _data(recipe: Recipe) -> Iterator[str]:
    spec, clients = recipe.data.prepare, recipe.clients
    if recipe.data.private and len(recipe.data.private) != clients:
        yield f"data.private: {len(recipe.data.private)} files for clients = {clients}"
    if spec is None:
        return
    if spec.clients != clients:
        yield f"data.prepare.clients: {spec.clients}, but clients = {clients}; leave it out"
    if spec.sizes_known:
        sizes = spec.sizes()
        for fault in set_sizes(recipe, sizes.public, {"each private set": sizes.private}):
            yield f"data.prepare: {fault}"


def _axes(recipe: Recipe) -> Iterator[str]:
    known = known_keys(type(recipe))
    axes = dict.fromkeys(axis for table in recipe.sweep.grid for axis in table)
    for axis in axes:
        if axis in _NOT_SWEPT:
            yield f"sweep.grid: {axis}: {_NOT_SWEPT[axis]}"
        elif axis not in (*known, MEMBERS):
            yield f"sweep.grid: {unknown(axis, [*known, MEMBERS])}"

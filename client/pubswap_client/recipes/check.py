"""The recipes that a sweep comes to: one for each setting of its grid."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pubswap_client.recipes.recipe import Reading, Recipe, read_recipe
from pubswap_client.recipes.sweep import MEMBERS, Value
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.schedule import public_steps_per_round
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import AdapterLayout, sent_layout
from pubswap_protocol.tensors.update_encoding import ReducedForm

FEDERATED = "federated"


def load_variants(
    source: Path | str, overrides: Mapping[str, Any] | None = None
) -> Iterator[tuple[dict[str, Value], Recipe]]:
    """Each setting of a recipe's sweep, and the recipe with it.

    A baseline, `members` = alone or pooled, is the recipe with method fedavg; who its one client
    is, is not said in it. Raises InvalidSettings, naming the combination that is impossible.
    """
    for setting, reading in _readings(read_recipe(source, overrides)):
        if reading.recipe is None or reading.faults:
            raise InvalidSettings(f"{reading.path}: {combination(setting)}: {reading.faults[0]}")
        yield setting, reading.recipe


def impossible(reading: Reading) -> Iterator[str]:
    """What is wrong with the combinations of a sound recipe's sweep, each by its name."""
    for setting, varied in _readings(reading):
        yield from (f"sweep: {combination(setting)}: {fault}" for fault in varied.faults)


def repeated(reading: Reading) -> Iterator[str]:
    """Settings of a sweep that compute the same as another, such as fedavg at two swap periods."""
    first: dict[str, str] = {}
    for setting, varied in _readings(reading):
        computed = str(setting.get(MEMBERS, FEDERATED)) + _computed(varied.sound())
        name = combination(setting)
        if computed in first:
            yield f"{name} is the same run as {first[computed]}"
        first.setdefault(computed, name)


def _computed(recipe: Recipe) -> str:
    unused = {"sweep", "about", "name"}
    unused |= {"swap"} if recipe.method != "pubswap" else set()
    unused |= {"fedprox"} if recipe.method != "fedprox" else set()
    return recipe.model_dump_json(exclude=unused)


def combination(setting: Mapping[str, Value]) -> str:
    """Such as `method = pubswap, swap.period = 8`."""
    return ", ".join(f"{axis} = {value}" for axis, value in setting.items())


def _readings(reading: Reading) -> Iterator[tuple[dict[str, Value], Reading]]:
    for setting in reading.sound().sweep.settings():
        yield setting, _varied(reading, setting)


def _varied(reading: Reading, setting: Mapping[str, Value]) -> Reading:
    values: dict[str, Any] = {axis: v for axis, v in setting.items() if axis != MEMBERS}
    if setting.get(MEMBERS, FEDERATED) == FEDERATED:
        return reading.varied(values)
    # One client has nobody to swap with.
    varied = reading.varied(values | {"method": "fedavg"})
    if values.get("method", "fedavg") != "fedavg":
        fault = f"method: {setting[MEMBERS]!r} trains one client by itself; leave method out"
        return Reading(
            varied.path, varied.layers, varied.merged, varied.recipe, [fault, *varied.faults]
        )
    return varied


KEEP_ROUNDS = 2  # the coordinator's PUBSWAP_KEEP_ROUNDS, by default
_NUMBERS = {"none": 0, "momentum": 1, "adam": 2, "yogi": 2}
_RESPONSE_TOKEN_BYTES = 8  # its id and its log-probability
_CHECKPOINT = 3  # the factors, and AdamW's two moments of each


@dataclass(frozen=True)
class RecipeCost:
    """Of one run with the recipe's own settings; `runs` is how many its sweep has."""

    rounds: int
    local_steps: int
    public_steps: int
    responses: int
    adapter_bytes: int | None
    update_bytes: int | None
    coordinator_bytes: int | None
    member_bytes: int | None
    runs: int
    settings: int
    seeds: int

    @property
    def steps(self) -> int:
        """GRPO steps of each client."""
        return self.rounds * self.local_steps


def cost_of(recipe: Recipe, layout: AdapterLayout | None) -> RecipeCost:
    """The cost; `layout` is the adapter's, None if the base model is not here."""
    grpo, steps = recipe.grpo, recipe.rounds * recipe.local_steps
    return RecipeCost(
        rounds=recipe.rounds,
        local_steps=recipe.local_steps,
        public_steps=recipe.rounds * public_steps_per_round(recipe),
        responses=steps * grpo.prompts_per_step * grpo.responses_per_prompt,
        adapter_bytes=layout.file_bytes if layout else None,
        update_bytes=_update_bytes(recipe, layout) if layout else None,
        coordinator_bytes=coordinator_bytes(recipe, layout) if layout else None,
        member_bytes=_member_bytes(recipe, layout) if layout else None,
        runs=recipe.sweep.runs(recipe.clients),
        settings=len(list(recipe.sweep.settings())),
        seeds=len(recipe.sweep.seeds),
    )


def _update_bytes(recipe: RunSettings, layout: AdapterLayout) -> int:
    """What a client sends at a round's end."""
    sent = sent_layout(layout, recipe.aggregation.rule)
    precision = recipe.wire.precision
    return sent.file_bytes if precision == "float32" else ReducedForm(sent, precision).file_bytes


def coordinator_bytes(recipe: RunSettings, layout: AdapterLayout) -> int:
    """What the coordinator keeps at most: each round's outcome, and the last rounds' submissions.

    Those of KEEP_ROUNDS rounds, and of the one under way.
    """
    grpo, rules = recipe.grpo, recipe.aggregation
    responses = grpo.prompts_per_step * grpo.responses_per_prompt * grpo.max_response_tokens
    sent = _update_bytes(recipe, layout)
    sent += public_steps_per_round(recipe) * responses * _RESPONSE_TOKEN_BYTES
    outcome = layout.file_bytes * (1 + _NUMBERS[rules.server_optimizer])
    outcome += _residual_bytes(recipe, layout)
    rounds = min(recipe.rounds, KEEP_ROUNDS + 1)
    return (recipe.rounds + 1) * outcome + rounds * recipe.clients * sent


def _member_bytes(recipe: Recipe, layout: AdapterLayout) -> int:
    """A checkpoint, while the next one is written beside it; what rounding leaves; residuals."""
    needed = 2 * _CHECKPOINT * layout.file_bytes
    if recipe.wire.precision != "float32":
        needed += 2 * (_update_bytes(recipe, layout) + layout.file_bytes)
    return needed + recipe.rounds * _residual_bytes(recipe, layout)


def _residual_bytes(recipe: RunSettings, layout: AdapterLayout) -> int:
    """FedEx-LoRA's, of each round: a stack of all clients' factors, at most."""
    return recipe.clients * layout.file_bytes if recipe.aggregation.rule == "fedex" else 0

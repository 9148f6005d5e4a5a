"""What a recipe's run takes: steps, responses, bytes."""

from dataclasses import dataclass

from pubswap_client.recipes.recipe import Recipe
from pubswap_protocol.adapter import AdapterLayout
from pubswap_protocol.factors import sent_layout
from pubswap_protocol.schedule import public_steps_per_round
from pubswap_protocol.wire import ReducedForm


@dataclass(frozen=True)
class Cost:
    """Of one run with the recipe's own settings; `runs` is how many its sweep has."""

    rounds: int
    local_steps: int
    public_steps: int
    responses: int
    adapter_bytes: int | None
    update_bytes: int | None
    runs: int
    settings: int
    seeds: int

    @property
    def steps(self) -> int:
        """GRPO steps of each client."""
        return self.rounds * self.local_steps


def cost_of(recipe: Recipe, layout: AdapterLayout | None) -> Cost:
    """The cost; `layout` is the adapter's, None if the base model is not here."""
    grpo, steps = recipe.grpo, recipe.rounds * recipe.local_steps
    return Cost(
        rounds=recipe.rounds,
        local_steps=recipe.local_steps,
        public_steps=recipe.rounds * public_steps_per_round(recipe),
        responses=steps * grpo.prompts_per_step * grpo.responses_per_prompt,
        adapter_bytes=layout.file_bytes if layout else None,
        update_bytes=_update_bytes(recipe, layout) if layout else None,
        runs=recipe.sweep.runs(recipe.clients),
        settings=len(list(recipe.sweep.settings())),
        seeds=len(recipe.sweep.seeds),
    )


def _update_bytes(recipe: Recipe, layout: AdapterLayout) -> int:
    """What a client sends at a round's end."""
    sent = sent_layout(layout, recipe.aggregation.rule)
    precision = recipe.wire.precision
    return sent.file_bytes if precision == "float32" else ReducedForm(sent, precision).file_bytes

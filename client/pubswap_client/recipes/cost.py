"""What a recipe's run takes: steps, responses, bytes."""

from dataclasses import dataclass

from pubswap_client.recipes.recipe import Recipe
from pubswap_protocol.adapter import AdapterLayout
from pubswap_protocol.factors import sent_layout
from pubswap_protocol.schedule import public_steps_per_round
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.wire import ReducedForm

KEEP_ROUNDS = 2  # the coordinator's PUBSWAP_KEEP_ROUNDS, by default
_NUMBERS = {"none": 0, "momentum": 1, "adam": 2, "yogi": 2}
_RESPONSE_TOKEN_BYTES = 8  # its id and its log-probability
_CHECKPOINT = 3  # the factors, and AdamW's two moments of each


@dataclass(frozen=True)
class Cost:
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

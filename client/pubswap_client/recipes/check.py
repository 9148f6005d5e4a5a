"""A recipe's faults, the settings of its sweep, and the cost of a run."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from pubswap_client.base_model import local_folder, tokenizer_of
from pubswap_client.recipes.recipe import Reading, Recipe
from pubswap_client.recipes.runfile import set_faults
from pubswap_client.recipes.tables import MEMBERS, Value
from pubswap_protocol.command_line.amounts import duration_text, size_text
from pubswap_protocol.errors import InvalidProblems, InvalidSettings
from pubswap_protocol.model import model_layout
from pubswap_protocol.problems import read_problems
from pubswap_protocol.prompts import Prompt
from pubswap_protocol.schedule import private_steps_per_round, public_steps_per_round
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import AdapterLayout
from pubswap_protocol.tensors.update_encoding import largest_update
from pubswap_protocol.verifiers import check_usable

KEEP_ROUNDS = 2  # the coordinator's PUBSWAP_KEEP_ROUNDS, by default
_SERVER_MOMENTS = {"none": 0, "momentum": 1, "adam": 2}
RESPONSE_TOKEN_BYTES = 8  # its id and its log-probability
_CHECKPOINT = 3  # the factors, and AdamW's two moments of each


def variants(reading: Reading) -> Iterator[tuple[dict[str, Value], Reading]]:
    """Each setting of a sound recipe's sweep, and the recipe with that setting.

    A baseline, `members` = alone or pooled, is the recipe with method fedavg, because one client
    has no peers to exchange with. The recipe does not say which client it is.
    """
    for setting in reading.sound().sweep.settings():
        values: dict[str, Any] = {axis: v for axis, v in setting.items() if axis != MEMBERS}
        if setting.get(MEMBERS, "federated") in ("federated", "with-public"):
            yield setting, reading.varied(values)
            continue
        varied = reading.varied(values | {"method": "fedavg"})
        if values.get("method", "fedavg") != "fedavg":
            fault = f"method: {setting[MEMBERS]!r} trains one client by itself; leave method out"
            varied.faults.insert(0, fault)
        yield setting, varied


def impossible(reading: Reading) -> Iterator[str]:
    """The faults of the combinations in a sound recipe's sweep, each with its name."""
    for setting, varied in variants(reading):
        yield from (f"sweep: {combination(setting)}: {fault}" for fault in varied.faults)


def repeated(reading: Reading) -> Iterator[str]:
    """Settings of a sweep that compute the same as another, such as fedavg at two periods."""
    first: dict[str, str] = {}
    for setting, varied in variants(reading):
        recipe, unused = varied.sound(), {"sweep", "about", "name"}
        computed = str(setting.get(MEMBERS, "federated")) + recipe.model_dump_json(exclude=unused)
        name = combination(setting)
        if computed in first:
            yield f"{name} is the same run as {first[computed]}"
        first.setdefault(computed, name)


def examined(reading: Reading) -> tuple[list[str], AdapterLayout | None, str | None]:
    """All faults of a recipe; if the base model is here, the adapter's layout and an example."""
    faults, recipe = list(reading.faults), reading.recipe
    layout, example, tokenizer = None, None, None
    if recipe is not None:
        try:
            folder = local_folder(recipe.model.location, recipe.model.revision)
            if folder is not None:
                layout = model_layout(folder, recipe.lora)
                tokenizer = tokenizer_of(folder)
                with suppress(InvalidProblems):  # of the public set, which `set_faults` reads
                    example = tokenizer.example(recipe, _public_prompt(recipe))
        except InvalidSettings as error:
            faults.append(f"model: {error.detail}")
        try:
            check_usable(recipe.verifier)
        except InvalidSettings as error:
            faults.append(f"verifier: {error.detail}")
        faults += set_faults(recipe, tokenizer)
    if not reading.faults:
        faults += impossible(reading)
    return faults, layout, example


def _public_prompt(recipe: Recipe) -> Prompt | None:
    """The first prompt of the public set, if that exists already. Raises InvalidProblems."""
    if recipe.data.prepare is not None:
        return None
    return read_problems(recipe.data.files(recipe.clients).public)[0].prompt


def combination(setting: dict[str, Value]) -> str:
    """Such as `method = pubswap, method.period = 8`."""
    return ", ".join(f"{axis} = {value}" for axis, value in setting.items())


def coordinator_bytes(recipe: RunSettings, layout: AdapterLayout) -> int:
    """Maximum bytes on the coordinator: all rounds' outcomes, and the last rounds' submissions.

    Submissions are kept for KEEP_ROUNDS rounds and the current one.
    """
    grpo = recipe.grpo
    responses = grpo.prompts_per_step * grpo.responses_per_prompt * grpo.max_response_tokens
    sent = largest_update(layout, recipe)
    sent += public_steps_per_round(recipe) * responses * RESPONSE_TOKEN_BYTES
    outcome = layout.file_bytes * (1 + len(recipe.aggregation.server_optimizer.memory))
    rounds = min(recipe.rounds, KEEP_ROUNDS + 1)
    return (recipe.rounds + 1) * outcome + rounds * recipe.clients * sent


def member_bytes(recipe: Recipe, layout: AdapterLayout) -> int:
    """Bytes on a member: a checkpoint and the next one beside it."""
    return 2 * _CHECKPOINT * layout.file_bytes


def max_responses(recipe: RunSettings) -> int:
    """The maximum number of responses that a client samples, with all draws of resampling."""
    grpo = recipe.grpo
    draws = recipe.local_steps + grpo.resample * private_steps_per_round(recipe)
    return recipe.rounds * draws * grpo.prompts_per_step * grpo.responses_per_prompt


def evaluated_responses(recipe: Recipe) -> int | None:
    """The number of responses in the evaluations of the base model and each round; None if the
    number of test problems depends on data that is not divided yet."""
    data = recipe.data
    if data.prepare is not None:
        problems = data.prepare.sizes().test
    else:
        problems = len(read_problems(data.files(recipe.clients).test))
    return (recipe.rounds + 1) * problems * recipe.evaluation.samples or None


def device_hours(reading: Reading, tokens_per_second: float) -> float:
    """Maximum hours for all runs of a sweep on one device that does all members' work in turn."""
    sweep, tokens = reading.sound().sweep, 0
    for setting, varied in variants(reading):
        recipe, members = varied.sound(), setting.get(MEMBERS, "federated")
        clients = 1 if members == "pooled" else recipe.clients
        runs = recipe.clients if members == "alone" else 1
        responses = clients * max_responses(recipe) + runs * (evaluated_responses(recipe) or 0)
        tokens += responses * recipe.grpo.max_response_tokens
    return len(sweep.seeds) * tokens / tokens_per_second / 3600


def cost_lines(
    recipe: Recipe, layout: AdapterLayout | None, tokens_per_second: float | None = None
) -> Iterator[str]:
    """A run's steps, responses and bytes; the adapter's if the base model is here.

    `tokens_per_second` is the slowest client's. Without it there is no estimate of the time,
    because machines differ too much.
    """
    rounds, tau, grpo, sweep = recipe.rounds, recipe.local_steps, recipe.grpo, recipe.sweep
    members = f"{recipe.method}, {recipe.clients} clients"
    yield f"{recipe.name}: {members}, base model: {recipe.model.source}"
    yield f"steps:     {rounds} rounds x {tau} = {rounds * tau} per client"
    yield f"           {rounds * public_steps_per_round(recipe)} of them public"
    yield f"responses: {max_responses(recipe)} per client, at most"
    yield f"           {evaluated_responses(recipe) or 'an unknown number'} by the evaluator"
    yield f"           {grpo.max_response_tokens} tokens each"
    if tokens_per_second is None:
        yield "time:      give --tokens-per-second for an estimate: the figure that `pubswap client"
        yield "           doctor` measures on the slowest organisation's machine"
    else:
        tokens = max_responses(recipe) * grpo.max_response_tokens
        longest = duration_text(tokens / tokens_per_second)
        yield f"time:      {longest} per client at {tokens_per_second:g} tokens/s, if all"
        yield "           responses reach their limit; waiting for others comes on top"
    if layout is None:
        yield f"adapter:   size unknown: no folder {recipe.model.source} here; taken as a hub id,"
        yield "           and its files are not here"
    else:
        sent = largest_update(layout, recipe)
        yield (
            f"adapter:   {size_text(layout.file_bytes)}; a client sends {size_text(sent)} a round, "
            f"{size_text(sent * rounds)} in all"
        )
        coordinator = size_text(coordinator_bytes(recipe, layout))
        yield (
            f"disk:      {coordinator} on the coordinator at most, with the updates of "
            f"{KEEP_ROUNDS} rounds kept (PUBSWAP_KEEP_ROUNDS)"
        )
        member = size_text(member_bytes(recipe, layout))
        yield f"           {member} on each member, without the base model"
    settings, runs = len(list(sweep.settings())), sweep.runs(recipe.clients)
    if runs > 1:
        yield f"sweep:     {settings} settings, {len(sweep.seeds)} seeds: {runs} runs"

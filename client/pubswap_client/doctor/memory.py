"""The device and its memory, against an estimate of what training takes of it."""

from collections.abc import Callable

from pubswap_client.doctor.finding import Finding, failure, ok, warning
from pubswap_client.operator.tables import size_text
from pubswap_client.settings import ClientSettings
from pubswap_client.training.needs import Needs, Place, fitting_rows, fitting_update
from pubswap_protocol.settings import RunSettings

DEVICE, MEMORY = "device", "memory"

Estimate = Callable[[ClientSettings], Needs]


def check_device(settings: ClientSettings, place: Place) -> Finding:
    """What there is, and enough of it for the processes that are asked for."""
    found = f"{place.name}, {size_text(place.free)} free"
    if place.cuda and settings.processes > place.count:
        return failure(
            DEVICE,
            f"{found}; {settings.processes} processes share {place.count} GPUs",
            f"Set processes = {place.count}: each needs a GPU of its own.",
        )
    if place.cuda and place.count > settings.processes:
        return warning(
            DEVICE,
            f"{found}; {place.count} GPUs are there and {settings.processes} are used",
            f"Set processes = {place.count} to share each update among all of them.",
        )
    if not place.cuda:
        return ok(DEVICE, f"{found} (torch finds no GPU, or device = 'cpu')")
    return ok(DEVICE, found)


def check_memory(
    settings: ClientSettings, run: RunSettings, place: Place, estimate: Estimate
) -> Finding:
    """The longest prompts and responses fit; an estimate, which may be off by half."""
    free = place.free if place.cuda else place.free // settings.processes
    needs = estimate(settings)
    found = (
        f"about {size_text(needs.peak)} of {size_text(free)}: weights {size_text(needs.weights)}, "
        f"adapter and optimizer {size_text(needs.factors)}, an update of {needs.tokens} tokens at "
        f"a time {size_text(needs.update)}, sampling {size_text(needs.rollout + needs.engine)}"
    )
    if needs.fixed > free:
        return failure(
            MEMORY, f"{found}; the model alone does not fit", _room(settings, place, needs)
        )
    advice = []
    if needs.fixed + needs.update > free:
        changes = fitting_update(settings, estimate, free)
        advice.append(
            f"Set {' or '.join(changes)}."
            if changes
            else "Set gradient_checkpointing = true, and share the machine with nothing else."
        )
    if needs.fixed + needs.rollout > free:
        rows = fitting_rows(settings, estimate, free, run.grpo.responses_per_prompt)
        change = f"rollout_rows = {rows}, or " if rows else ""
        advice.append(f"For sampling, set {change}engine = 'vllm' (README, vLLM).")
    return warning(MEMORY, found, " ".join(advice)) if advice else ok(MEMORY, found)


def _room(settings: ClientSettings, place: Place, needs: Needs) -> str:
    """What to do when not even the weights fit."""
    if not place.cuda:
        return f"Take a machine with {size_text(needs.peak)} of free memory for each process."
    if needs.engine:
        return "Set vllm.sleep = true, or a smaller vllm.gpu_memory_utilization."
    count = -(-2 * needs.weights // max(1, place.free - needs.factors))
    return (
        "End what else uses this GPU (nvidia-smi), or share the model: "
        f"processes = {max(2, count)}, shard = true and engine = 'vllm-server'."
    )

"""Checks of the device, its memory against an estimate of what training needs, and replicas."""

from contextlib import closing

from pubswap_client.doctor.facts import Facts
from pubswap_client.doctor.findings import Finding, failure, of_error, ok, skipped, warning
from pubswap_client.policy.policy import emulates_bfloat16
from pubswap_client.rollout.engine_choice import chosen_engine
from pubswap_client.rollout.vllm_http import InferenceServer
from pubswap_client.settings import ClientSettings
from pubswap_client.training.memory import Device, MemoryEstimate, estimate_memory, measure_device
from pubswap_protocol.command_line.amounts import size_text

_NO_GPU = "Check that nvidia-smi lists it and torch is a CUDA build, or set device = 'cpu'."


def check_device(facts: Facts) -> Finding:
    """Check that there is a device, and that no GPU is left out."""
    try:
        facts.device = measure_device(facts.settings)
    except Exception as error:
        return of_error(error, _NO_GPU)
    return on_device(facts.settings, facts.device)


def on_device(settings: ClientSettings, device: Device) -> Finding:
    text = f"{device.name}, {size_text(device.free)} free"
    if device.cuda and device.count > settings.processes:
        return warning(
            f"{text}; {device.count} GPUs, of which {settings.processes} are used",
            f"Set processes = {device.count} to share each update among all of them.",
        )
    if device.cuda:
        return ok(text)
    text = f"{text} (torch finds no GPU, or device = 'cpu')"
    settled = settings.dtype == "bfloat16" or emulates_bfloat16("bfloat16", cuda=False)
    return ok(text if settled else f"{text}; it is faster with dtype = 'bfloat16'")


def check_memory(facts: Facts) -> Finding:
    """Check that the longest prompts and responses fit; the estimate may be off by half."""
    if facts.device is None or facts.run is None or facts.model is None:
        return skipped("a device and the run's own model")
    (folder, card), run = facts.model, facts.run.settings
    needs = estimate_memory(facts.settings, run, card, folder, facts.device)
    return in_memory(facts.settings, facts.device, needs)


def in_memory(settings: ClientSettings, device: Device, needs: MemoryEstimate) -> Finding:
    free = device.free if device.cuda else device.free // settings.processes
    vllm = f", vLLM while it is not sampling {size_text(needs.engine)}" if needs.engine else ""
    text = (
        f"about {size_text(needs.peak)} of {size_text(free)}: weights {size_text(needs.weights)}, "
        f"adapter and optimizer {size_text(needs.factors)}{vllm}, and in turn an update of "
        f"{needs.tokens} tokens at a time {size_text(needs.update)}, and sampling "
        f"{size_text(needs.rollout)}"
    )
    if needs.fixed > free:
        return failure(
            f"{text}; the model alone does not fit",
            "Stop other programs there, set vllm.sleep = true, or shard the model over several "
            "GPUs: processes, shard = true and engine = 'vllm-server' (docs/engines.md).",
        )
    if needs.peak <= free:
        return ok(text)
    fewer = f"micro_batch_tokens below {needs.tokens}"
    if needs.fixed + needs.update <= free:  # so it is sampling that does not fit
        fewer = f"rollout_rows below {needs.rows}" if needs.rows else "a smaller share for vLLM"
    return warning(
        text,
        f"Set {fewer}, or what else takes less memory: gradient_checkpointing, dtype, vllm.sleep, "
        "vllm.extra.gpu_memory_utilization (docs/engines.md).",
    )


def check_replicas(facts: Facts) -> Finding | None:
    """Check that each replica of vLLM answers; the trial step checks how it was started."""
    vllm = facts.settings.vllm
    if facts.run is None or chosen_engine(facts.settings, facts.run.settings) != "vllm-server":
        return None
    key = vllm.api_key.get_secret_value() if vllm.api_key else None
    for url in vllm.urls:
        with closing(InferenceServer(url, key, connect_seconds=0)) as server:
            server.base_model()
    return ok(f"{len(vllm.urls)} replicas answer")

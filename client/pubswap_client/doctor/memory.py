"""Checks of the device, its memory against an estimate of what training needs, and the engine."""

import os
from contextlib import closing
from importlib.util import find_spec

from pubswap_client.doctor.facts import Facts
from pubswap_client.doctor.findings import Finding, failure, of_error, ok, skipped, warning
from pubswap_client.policy.policy import EMULATED, emulates_bfloat16
from pubswap_client.rollout.engine_choice import chosen_engine, why_not_vllm
from pubswap_client.rollout.vllm_http import InferenceServer
from pubswap_client.settings import ClientSettings
from pubswap_client.training.memory import (
    Device,
    MemoryEstimate,
    batch_rows,
    estimate_memory,
    measure_device,
)
from pubswap_protocol.command_line.amounts import size_text
from pubswap_protocol.errors import EngineFault
from pubswap_protocol.messages import Role
from pubswap_protocol.settings import RunSettings

_NO_GPU = "Check that nvidia-smi lists it and torch is a CUDA build, or set device = 'cpu'."


def check_device(facts: Facts) -> Finding:
    """Check that each process has a device."""
    try:
        facts.device = measure_device(facts.settings)
    except Exception as error:
        return of_error(error, _NO_GPU)
    return on_device(facts.settings, facts.device)


def check_memory(facts: Facts) -> Finding:
    """Check that the longest prompts and responses fit; the estimate may be off by half."""
    if facts.device is None or facts.run is None or facts.model is None:
        return skipped("a device and the run's own model")
    settings, run, device = facts.settings, facts.run.settings, facts.device
    (folder, card), evaluator = facts.model, facts.role is Role.EVALUATOR
    needs = estimate_memory(settings, run, card, folder, device, evaluator)
    return in_memory(settings, run, device, needs, evaluator)


def check_engine(facts: Facts) -> Finding:
    """Check that the engine is installed, or answers; it samples in the trial step only."""
    return (
        skipped("the run") if facts.run is None else of_engine(facts.settings, facts.run.settings)
    )


def on_device(settings: ClientSettings, device: Device) -> Finding:
    text = f"{device.name}, {size_text(device.free)} free"
    if device.cuda and settings.processes > device.count:
        return failure(
            f"{text}; {settings.processes} processes share {device.count} GPUs",
            f"Set processes = {device.count}: each needs a GPU of its own.",
        )
    if device.cuda and device.count > settings.processes:
        return warning(
            f"{text}; {device.count} GPUs, of which {settings.processes} are used",
            f"Set processes = {device.count} to share each update among all of them.",
        )
    if emulates_bfloat16(settings.dtype, device.cuda):
        return warning(f"{text}; {EMULATED}", "Remove dtype = 'bfloat16', unless memory is short.")
    if not device.cuda:
        return ok(f"{text} (torch finds no GPU, or device = 'cpu')")
    return ok(text)


def in_memory(
    settings: ClientSettings,
    run: RunSettings,
    device: Device,
    needs: MemoryEstimate,
    evaluator: bool = False,
) -> Finding:
    free = device.free if device.cuda else device.free // settings.processes
    text = f"about {size_text(needs.peak)} of {size_text(free)}: {_parts(needs, run, evaluator)}"
    if needs.fixed > free:
        return failure(f"{text}; the model alone does not fit", _room(device, needs))
    advice = []
    if needs.fixed + needs.update > free:
        changes = [f"micro_batch_tokens below {needs.tokens}"]
        if not settings.gradient_checkpointing:
            changes.insert(0, "gradient_checkpointing = true")
        if needs.awake and device.cuda:
            changes.append("vllm.sleep = true")
        advice.append(f"Set {' or '.join(changes)}.")
    if needs.fixed + needs.rollout > free:
        advice.append(_for_sampling(device, needs, free))
    return warning(text, " ".join(advice)) if advice else ok(text)


def _for_sampling(device: Device, needs: MemoryEstimate, free: int) -> str:
    if needs.rows:
        return (
            f"For sampling, set rollout_rows below {needs.rows} or engine = 'vllm' "
            "(docs/engines.md)."
        )
    remaining = free - needs.weights - needs.factors
    if remaining <= needs.weights:
        return "vLLM's own weights do not fit beside the trainer's: set engine = 'transformers'."
    share = remaining * 100 // device.total
    return f"For sampling, set vllm.extra.gpu_memory_utilization = {share / 100:g}."


def _parts(needs: MemoryEstimate, run: RunSettings, evaluator: bool) -> str:
    sampling = _sampling(needs, batch_rows(run, evaluator))
    weights = f"weights {size_text(needs.weights)}"
    if evaluator:
        return f"{weights}, adapter {size_text(needs.factors)}, {sampling}"
    return (
        f"{weights}, adapter and optimizer {size_text(needs.factors)}, an update of "
        f"{needs.tokens} tokens at a time {size_text(needs.update)}, {sampling}"
    )


def _sampling(needs: MemoryEstimate, responses: int) -> str:
    size = size_text(needs.rollout + needs.engine)
    if needs.rows:
        return f"sampling {needs.rows} of {responses} responses at a time {size}"
    if needs.awake:
        return f"vLLM {size}, which stays awake beside it"
    if needs.engine:
        return f"vLLM {size}, of which it keeps {size_text(needs.engine)} while asleep"
    return f"sampling {size}"


def _room(device: Device, needs: MemoryEstimate) -> str:
    """Advice if not even the weights fit."""
    if not device.cuda:
        return f"Use a machine with {size_text(needs.peak)} of free memory for each process."
    if needs.awake:
        return "Set vllm.sleep = true, or a smaller vllm.extra.gpu_memory_utilization."
    count = -(-2 * needs.weights // max(1, device.free - needs.factors))
    return (
        "Stop other programs on this GPU (nvidia-smi), or shard the model: "
        f"processes = {max(2, count)}, shard = true and engine = 'vllm-server'."
    )


def of_engine(settings: ClientSettings, run: RunSettings) -> Finding:
    chosen = chosen_engine(settings, run)
    if chosen == "vllm-server":
        return check_replicas(settings, run)
    if chosen == "transformers":
        reason = settings.engine == "auto" and why_not_vllm(settings, run)
        return ok(f"transformers, and not vLLM: {reason}" if reason else "transformers")
    if find_spec("vllm") is None:
        return failure(
            "vLLM is not installed",
            "pip install '.[client,vllm]' in an environment without the server extra, or "
            "set engine = 'transformers'.",
        )
    return ok("vLLM is installed")


def check_replicas(settings: ClientSettings, run: RunSettings) -> Finding:
    """Check the shared folder, and that each replica answers and takes the run's lengths."""
    folder = settings.vllm.adapter_dir
    if folder is None or not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        return failure(
            f"vllm.adapter_dir {folder} is not a writable folder",
            "Create it on a disk that this machine and all replicas see at the same path.",
        )
    longest = run.grpo.longest_row
    key = settings.vllm.api_key.get_secret_value() if settings.vllm.api_key else None
    for url in settings.vllm.urls:
        with closing(InferenceServer(url, key, connect_seconds=0)) as server:
            try:
                base = server.base_model()
            except EngineFault as error:
                return of_error(
                    error, f"Start vLLM there, or correct {url} in vllm.urls, or vllm.api_key."
                )
        if base.max_model_len is not None and base.max_model_len < longest:
            return failure(
                f"{url} takes {base.max_model_len} tokens, the run needs {longest}",
                f"Start it again with --max-model-len {longest}.",
            )
    return ok(f"{len(settings.vllm.urls)} replicas answer")

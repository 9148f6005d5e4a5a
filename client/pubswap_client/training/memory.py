"""Memory estimates for an update, from which its token budget is chosen in advance."""

import logging
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from transformers import AutoConfig

from pubswap_client.policy.loading import refusing
from pubswap_client.policy.logprobs import CPU_LOGITS, GPU_LOGITS
from pubswap_client.policy.memory import Shape, free_bytes, release_cached_memory
from pubswap_client.policy.policy import Policy, base_dtype, find_device
from pubswap_client.rollout.engine_choice import chosen_engine
from pubswap_client.rollout.memory import Lengths, merged_bytes, rollout_bytes, rows_that_fit
from pubswap_client.rollout.vllm_engine import CPU_CACHE_BYTES
from pubswap_client.settings import ClientSettings
from pubswap_protocol.errors import OutOfMemory
from pubswap_protocol.model import ModelCard
from pubswap_protocol.settings import RunSettings

CPU_TOKENS = 2048  # more take more memory, and do not make a CPU faster
GPU_TOKENS = (1024, 32_768)
# glibc keeps the free memory between live blocks: the heap measured 1.3 to 1.5 times the memory
# that activations use, and 2.2 to 3.9 times if layers are recomputed.
HEAP, HEAP_RECOMPUTED = 1.5, 3.0
USABLE = 0.75  # of the free memory: kernels, fragmentation and the estimate's error need the rest
ENOUGH_TOKENS = 8192  # at a time: more hardly make a GPU's update faster
MARGIN = 0.9  # of the free memory: vLLM keeps its share even if the trainer needs more
ASLEEP = 2 << 30  # a sleeping vLLM keeps its CUDA context and graphs


def activation_bytes(shape: Shape, checkpointing: bool) -> int:
    """Approximate bytes that one token of a micro-batch keeps until its backward pass.

    A layer keeps the inputs of its norms in float32; the inputs of the adapted modules, each once
    for all modules that read it; the query, key and value as attention takes them, the latter two
    twice because responses share a prompt; and four tensors of the gated MLP. Fused norms and MLPs
    keep a quarter less. With checkpointing, only each layer's input is kept, plus everything in one
    layer while it is recomputed.
    """
    query, keys = shape.head_dim * shape.heads, shape.head_dim * shape.key_heads
    normed = 2 * shape.hidden + query + keys
    others = 2 * shape.hidden + 2 * query + 4 * keys + 4 * shape.intermediate
    layer = 4 * normed + shape.bytes_per_value * others
    if checkpointing:
        return shape.layers * shape.hidden * shape.bytes_per_value + layer
    return shape.layers * layer


def update_bytes(shape: Shape, tokens: int, checkpointing: bool, cuda: bool) -> int:
    """Peak bytes of an update beside weights and factors, with `tokens` tokens at a time."""
    kept = tokens * activation_bytes(shape, checkpointing)
    if not cuda:
        kept = int(kept * (HEAP_RECOMPUTED if checkpointing else HEAP))
    logits = min(tokens * shape.vocabulary, GPU_LOGITS if cuda else CPU_LOGITS)
    kept += 6 * logits  # a chunk, and its copy for the product with the output layer
    if not cuda and shape.bytes_per_value < 4:
        kept += 4 * shape.vocabulary * shape.hidden  # the output layer's copy in float32
    return kept


def factor_bytes(parameters: int) -> int:
    """Bytes to train an adapter, in float32.

    Factors, their values at the round's start, gradients, and AdamW's two moments.
    """
    return 5 * 4 * parameters


def default_budget(policy: Policy, checkpointing: bool) -> int:
    """Tokens at a time: as many as a GPU's free memory is estimated to hold, or 2,048 on a CPU."""
    if policy.device.type != "cuda":
        return CPU_TOKENS
    free = free_bytes(policy.device)
    return _gpu_budget(Shape.of(policy.model.config, policy.dtype), free, checkpointing)


def _gpu_budget(shape: Shape, free: int, checkpointing: bool) -> int:
    tokens = int(USABLE * free) // activation_bytes(shape, checkpointing)
    return max(GPU_TOKENS[0], min(GPU_TOKENS[1], tokens))


def memory_used(device: torch.device) -> int:
    """Bytes used: a GPU's peak since the last call, or this process's resident memory on a CPU."""
    if device.type == "cuda":
        peak = int(torch.cuda.max_memory_allocated(device))
        torch.cuda.reset_peak_memory_stats(device)
        return peak
    return int(psutil.Process().memory_info().rss)


log = logging.getLogger(__name__)

SMALLEST = 16


@dataclass
class TokenBudget:
    """Tokens computed at a time in the update. It shrinks for good when memory runs out."""

    tokens: int

    def halve(self) -> None:
        """Halve the budget after memory ran out. Raises OutOfMemory if it is at its smallest."""
        if self.tokens <= SMALLEST:
            raise OutOfMemory(
                f"Memory runs out with {self.tokens} tokens in a micro-batch. Set "
                "gradient_checkpointing = true, use a machine with more memory, or shorten "
                "grpo.max_response_tokens in the run."
            )
        self.tokens //= 2
        release_cached_memory()
        log.warning("Memory ran out: continuing with %d tokens at a time.", self.tokens)


@dataclass(frozen=True, slots=True)
class Device:
    """The device of one process: `free` and `total` are bytes."""

    name: str
    cuda: bool
    free: int
    total: int
    count: int  # GPUs of this machine; 1 for its CPU


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes for one process. Sampling and updates alternate, so the larger of the two counts."""

    weights: int
    factors: int
    engine: int  # held by vLLM while it is not sampling: all its memory, unless it sleeps
    update: int
    rollout: int  # in addition, while sampling
    tokens: int  # in a micro-batch of the update
    rows: int  # responses sampled at a time by transformers

    @property
    def fixed(self) -> int:
        return self.weights + self.factors + self.engine

    @property
    def peak(self) -> int:
        return self.fixed + max(self.update, self.rollout)

    @property
    def awake(self) -> bool:
        return self.engine > 0 and self.rollout == 0


def measure_device(settings: ClientSettings) -> Device:
    """The device that training would use. Raises InvalidSettings if a requested GPU is missing."""
    device = find_device(settings.device)
    if device.type != "cuda":
        free = int(psutil.virtual_memory().available)
        return Device("the CPU", False, free, free, 1)
    count = torch.cuda.device_count()
    free, total = min(torch.cuda.mem_get_info(n) for n in range(min(count, settings.processes)))
    return Device(torch.cuda.get_device_name(0), True, free, total, count)


def estimate_memory(
    settings: ClientSettings,
    run: RunSettings,
    card: ModelCard,
    folder: Path,
    device: Device,
    evaluator: bool = False,
) -> MemoryEstimate:
    """Estimate memory for the longest prompts and responses that the run allows.

    An evaluator has no optimizer and makes no updates. With `vllm.sleep = "auto"`, vLLM stays awake
    if the GPU then holds both it and the update, and the update's packs are either no smaller than
    with a sleeping vLLM or still large enough.
    """
    if settings.vllm.sleep == "auto":
        awake, asleep = (
            estimate_memory(
                settings.model_copy(
                    update={"vllm": settings.vllm.model_copy(update={"sleep": sleep})}
                ),
                run=run,
                card=card,
                folder=folder,
                device=device,
                evaluator=evaluator,
            )
            for sleep in (False, True)
        )
        enough = awake.tokens >= min(asleep.tokens, ENOUGH_TOKENS)
        return awake if enough and awake.peak <= MARGIN * device.free else asleep
    dtype = base_dtype(settings.dtype, device.cuda)
    with refusing(f"The memory for {folder} cannot be estimated"):
        shape = Shape.of(AutoConfig.from_pretrained(folder, trust_remote_code=False), dtype)
    weights = card.parameters * dtype.itemsize
    if settings.shard:
        # One layer is gathered at a time, while the next one is being fetched.
        weights = weights // settings.processes + 2 * weights // shape.layers
    parameters = card.layout.parameters
    factors = 4 * parameters if evaluator else factor_bytes(parameters)
    engine, rollout, rows = _sampling(
        settings, run, card, shape, device, weights, factors, evaluator
    )
    tokens = update = 0
    if not evaluator:
        tokens = _update_tokens(settings, run, shape, device, weights + factors + engine)
        update = update_bytes(shape, tokens, settings.gradient_checkpointing, device.cuda)
    return MemoryEstimate(weights, factors, engine, update, rollout, tokens, rows)


def _update_tokens(
    settings: ClientSettings, run: RunSettings, shape: Shape, device: Device, fixed: int
) -> int:
    """Tokens in a micro-batch: at least the longest row, and at most the whole step."""
    grpo = run.grpo
    tokens = settings.micro_batch_tokens or CPU_TOKENS
    if device.cuda and not settings.micro_batch_tokens:
        free = max(0, device.free - fixed)
        tokens = _gpu_budget(shape, free, settings.gradient_checkpointing)
    group = grpo.max_prompt_tokens + grpo.responses_per_prompt * grpo.max_response_tokens
    return max(grpo.longest_row, min(tokens, grpo.prompts_per_step * group))


def _sampling(
    settings: ClientSettings,
    run: RunSettings,
    card: ModelCard,
    shape: Shape,
    device: Device,
    weights: int,
    factors: int,
    evaluator: bool,
) -> tuple[int, int, int]:
    """`engine`, `rollout` and `rows` of an estimate with these weights and factors."""
    grpo, vllm, engine = run.grpo, settings.vllm, chosen_engine(settings, run)
    if engine == "vllm-server":
        return 0, 0, 0
    if engine == "vllm":
        if not device.cuda:
            return weights + (vllm.cache_bytes or CPU_CACHE_BYTES), 0, 0
        share = int(vllm.gpu_share * device.total)
        retained = min(ASLEEP, share) if vllm.sleep else share
        return retained, share - retained, 0
    rows = min(settings.rollout_rows, batch_rows(run, evaluator))
    group = run.evaluation.samples if evaluator else grpo.responses_per_prompt
    lengths = Lengths(grpo.max_prompt_tokens, grpo.max_response_tokens, group)
    merged = 0
    if device.cuda and not settings.shard:
        merged = merged_bytes(card.layout, shape)
        rows = rows_that_fit(shape, rows, lengths, device.free - weights - factors - merged)
    return 0, merged + rollout_bytes(shape, rows, lengths), rows


def batch_rows(run: RunSettings, evaluator: bool) -> int:
    """Number of responses in a step, or in an evaluator's batch."""
    if evaluator:
        return run.evaluation.batch_size * run.evaluation.samples
    return run.grpo.prompts_per_step * run.grpo.responses_per_prompt

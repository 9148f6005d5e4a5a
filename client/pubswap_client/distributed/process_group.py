"""Data-parallel processes of one organisation, on torch.distributed through accelerate.

The leader (rank 0) runs the daemon and holds the optimizer. Followers keep no state between
commands: for each update they receive the factors, compute their packs, and add their gradients.
So only the leader's progress has to survive a crash.
"""

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from accelerate import Accelerator, InitProcessGroupKwargs
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from pubswap_client.policy.policy import Policy
from pubswap_client.rollout.engine_choice import chosen_engine
from pubswap_client.rollout.transformers_engine import (
    Prompts,
    RolloutEngine,
    SamplingParameters,
    TransformersEngine,
)
from pubswap_client.rollout.vllm_engine import VllmEngine
from pubswap_client.settings import ClientSettings
from pubswap_client.training.memory import Device, estimate_memory
from pubswap_client.training.team import Team, Update
from pubswap_client.training.update import follow_update
from pubswap_protocol.tensors.responses import Response

log = logging.getLogger(__name__)

T = TypeVar("T")

# Makes torch use the existing store at MASTER_ADDR and MASTER_PORT: torchrun's, or ours.
USE_THIS_STORE = "TORCHELASTIC_USE_AGENT_STORE"

# A follower waits for its leader, and the leader may wait days for other organisations.
PATIENCE = timedelta(days=365)

LocalEngine = TransformersEngine | VllmEngine
Start = Callable[[Path], LocalEngine]
"""Starts a process's engine, with its files below the given folder."""


@dataclass(frozen=True, slots=True)
class Generate:
    """Sample responses."""

    prompts: list[list[int]]
    sampling: SamplingParameters


class ProcessGroup(Team):
    """A team over torch.distributed. This process's rank comes from the environment."""

    def __init__(self, cpu: bool, sharded: bool = False) -> None:
        """Join the processes named by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

        With `sharded`, every process takes part in every forward pass (FSDP2).
        """
        patience = InitProcessGroupKwargs(timeout=PATIENCE)
        self._accelerator = Accelerator(cpu=cpu, kwargs_handlers=[patience])
        self.rank: int = self._accelerator.process_index
        self.size = self._accelerator.num_processes
        self.is_leader = self.rank == 0
        self.lockstep = sharded
        self.device: torch.device = torch.device(self._accelerator.device)
        # Commands use a separate group, because waiting in gloo keeps neither CPU nor GPU busy.
        self._commands = dist.new_group(backend="gloo", timeout=PATIENCE)
        os.environ.pop(USE_THIS_STORE, None)  # a vLLM that we start opens its own

    def mesh(self) -> DeviceMesh:
        """A one-dimensional mesh of all processes, to shard a model over."""
        return init_device_mesh(self.device.type, (self.size,))

    def broadcast_object(self, value: T) -> T:
        """Return the leader's value on every process: a command, or None to end."""
        box: list[Any] = [value]
        dist.broadcast_object_list(box, src=0, group=self._commands)
        received: T = box[0]
        return received

    def gather(self, value: T) -> list[T]:
        """Every process's value, in rank order."""
        box: list[Any] = [None] * self.size
        dist.all_gather_object(box, value, group=self._commands)
        return box

    def announce(self, update: Update, factors: Sequence[Tensor]) -> None:
        self.broadcast_object(update)
        self.broadcast(factors)

    def share(self, plans: Sequence[list[int]]) -> list[list[int]]:
        """Every size-th plan. If sharded, all get equally many, padded with an empty plan."""
        mine = list(plans[self.rank :: self.size])
        if self.lockstep and len(mine) < -(-len(plans) // self.size):
            mine.append([])
        return mine

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over the processes, in one message."""
        if tensors:
            flat = torch.cat([tensor.flatten() for tensor in tensors])
            dist.all_reduce(flat)
            _scatter(flat, tensors)

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by the leader's, in one message."""
        flat = torch.cat([tensor.detach().flatten() for tensor in tensors])
        dist.broadcast(flat, src=0)
        _scatter(flat, tensors)

    def any(self, flag: bool) -> bool:
        flags = torch.tensor(float(flag), device=self.device)
        dist.all_reduce(flags)
        return bool(flags)

    def close(self) -> None:
        """Leave the process group; the leader stops its followers first."""
        if self.is_leader:
            self.broadcast_object(None)
        dist.destroy_process_group()


class ProcessGroupEngine(RolloutEngine):
    """The leader's engine. It samples on all processes, a share of the prompts on each."""

    def __init__(
        self, process_group: ProcessGroup, policy: Policy, state: Path, start: Start
    ) -> None:
        """Start an engine on all processes, at the same time."""
        self.process_group = process_group
        self.policy = policy
        process_group.broadcast_object(state)
        self.engine = start(state)

    def generate(self, prompts: Prompts, sampling: SamplingParameters) -> list[list[Response]]:
        """The same responses as from one engine: they depend only on seed and prompt index."""
        command = Generate([list(prompt) for prompt in prompts], sampling)
        self.process_group.broadcast_object(command)
        self.process_group.broadcast(self.policy.factors())
        return generate_together(self.process_group, self.engine, command)

    def close(self) -> None:
        """Close this process's engine; followers close theirs with the process group."""
        self.engine.close()


def start_engine(
    settings: ClientSettings,
    policy: Policy,
    model: Path,
    state: Path,
    rank: int = 0,
    evaluator: bool = False,
) -> LocalEngine:
    """Start transformers, or a vLLM on the base model in the folder `model`.

    Each process writes adapters to its own folder in `state`.
    """
    if chosen_engine(settings, policy.settings) == "transformers":
        return TransformersEngine(policy, max_rows=settings.rollout_rows)
    work = state / (f"adapters-{rank}" if rank else "adapters")
    sleeps = policy.device.type == "cuda" and _sleeps(settings, policy, model, evaluator)
    return VllmEngine(policy, model, work, settings.vllm, sleeps)


def _sleeps(settings: ClientSettings, policy: Policy, model: Path, evaluator: bool) -> bool:
    """Whether vLLM leaves the GPU's memory to the trainer while it is not sampling."""
    free, total = torch.cuda.mem_get_info(policy.device)
    # As before the policy was loaded, because the estimate includes its weights.
    free += torch.cuda.memory_reserved(policy.device)
    device = Device(str(policy.device), cuda=True, free=free, total=total, count=1)
    estimate = estimate_memory(settings, policy.settings, policy.card, model, device, evaluator)
    if settings.vllm.sleep == "auto":
        log.info(
            "vLLM stays awake: it fits on this GPU beside the trainer."
            if estimate.awake
            else "vLLM sleeps while it is not sampling: it does not fit on this GPU beside the "
            "trainer."
        )
    return not estimate.awake


def generate_together(
    process_group: ProcessGroup, engine: LocalEngine, command: Generate
) -> list[list[Response]]:
    """Sample each process's share of the prompts, and gather all responses on every process.

    A sharded policy's forward pass needs all processes at once, so there all sample all prompts.
    """
    if process_group.lockstep and isinstance(engine, TransformersEngine):
        return engine.generate(command.prompts, command.sampling)
    size = -(-len(command.prompts) // process_group.size)
    first = process_group.rank * size
    mine = engine.generate(command.prompts[first : first + size], command.sampling, first)
    return [group for groups in process_group.gather(mine) for group in groups]


def follow(process_group: ProcessGroup, policy: Policy, start: Start, checkpointing: bool) -> None:
    """Execute the leader's commands until it closes the group."""
    engine: LocalEngine | None = None
    command: Path | Update | Generate | None  # a folder for the files of an engine to start
    with ExitStack() as stack:
        while (command := process_group.broadcast_object(None)) is not None:
            if isinstance(command, Path):
                engine = stack.enter_context(closing(start(command)))
                continue
            process_group.broadcast(policy.factors())
            if isinstance(command, Update):
                follow_update(policy, command, checkpointing, process_group)
            else:
                assert engine is not None  # the leader starts engines before it samples
                generate_together(process_group, engine, command)


def _scatter(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    with torch.no_grad():
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))

"""Making a crew of the processes that the settings ask for, and a follower's whole life."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from pubswap_client.followers import die_with_the_leader, followers, launched_rank
from pubswap_client.settings import ClientSettings
from pubswap_client.training.crew import Crew, follow
from pubswap_client.training.policy import Policy, set_threads
from pubswap_client.training.rollout import TransformersEngine
from pubswap_client.training.self_check import check_packed_path
from pubswap_protocol.model import ModelCard
from pubswap_protocol.settings import RunSettings


@dataclass(frozen=True, slots=True)
class Charter:
    """What the leader tells its followers first: which policy they all hold."""

    folder: Path
    card: ModelCard
    settings: RunSettings


@contextmanager
def crew_of(settings: ClientSettings) -> Iterator[Crew | None]:
    """The crew that the settings ask for, its followers started; None for a single process.

    Under torchrun, the processes are already there.
    """
    rank = launched_rank()
    if rank is None and settings.processes == 1:
        yield None
        return
    cpu = settings.device == "cpu" or not torch.cuda.is_available()
    with followers(settings.processes - 1) if rank is None else nullcontext():
        crew = Crew(cpu=cpu, sharded=settings.shard)
        yield crew
        # Not after an error: the others may be in the middle of something else then.
        if crew.leads:
            crew.dismiss()
        crew.close()


def load_policy(settings: ClientSettings, charter: Charter, crew: Crew | None) -> Policy:
    """The charter's policy on this process's device, with its share of the CPU's threads."""
    if crew is not None:
        set_threads(settings.threads or max(1, (os.cpu_count() or 1) // crew.size))
    elif settings.threads:
        set_threads(settings.threads)
    return Policy.load(
        charter.folder,
        charter.card,
        charter.settings,
        device=settings.device if crew is None else crew.device,
        liger=settings.liger,
        mesh=crew.mesh() if crew is not None and settings.shard else None,
    )


def run_follower(settings: ClientSettings) -> None:
    """Compute what the leader asks for, until it says that it is over."""
    die_with_the_leader()
    with crew_of(settings) as crew:
        assert crew is not None
        charter: Charter | None = crew.tell(None)
        if charter is None:
            return
        policy = load_policy(settings, charter, crew)
        check_packed_path(policy)
        engine = TransformersEngine(policy, max_rows=settings.rollout_rows)
        follow(crew, policy, engine, settings.gradient_checkpointing)

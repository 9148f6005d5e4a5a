"""Launch the process group; a follower's main loop."""

import ctypes
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from pubswap_client.distributed.process_group import (
    USE_THIS_STORE,
    ProcessGroup,
    follow,
    start_engine,
)
from pubswap_client.policy.policy import Policy, find_device
from pubswap_client.policy.self_check import check_packed_path
from pubswap_client.settings import ClientSettings
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.model import ModelCard
from pubswap_protocol.settings import RunSettings

log = logging.getLogger(__name__)

FAILED = 70  # EX_SOFTWARE
STOP_SECONDS = 10
LEADER = "PUBSWAP_LEADER"  # in a follower's environment: the process that started it
_PR_SET_PDEATHSIG = 1


def launched_rank() -> int | None:
    """This process's rank if it is one of several: ours, or torchrun's."""
    return int(os.environ["RANK"]) if "RANK" in os.environ else None


@contextmanager
def followers(count: int) -> Iterator[None]:
    """Run `count` copies of this process's command as ranks 1.., this process being rank 0.

    They find each other by a store that is open to this machine alone: torch's own would listen on
    every address, to whoever comes, and what processes send each other is pickled.
    """
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    store = dist.TCPStore(  # type: ignore[attr-defined]  # it is documented, and not in __all__
        "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=server.detach()
    )
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        USE_THIS_STORE: "True",
        "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
        "WORLD_SIZE": str(count + 1),
        "LOCAL_WORLD_SIZE": str(count + 1),
    }
    processes = []
    for rank in range(1, count + 1):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), LEADER: str(os.getpid())}
        environment = os.environ | shared | own
        processes.append(subprocess.Popen(sys.orig_argv, env=environment))
    os.environ |= shared | {"RANK": "0", "LOCAL_RANK": "0"}
    stopping = threading.Event()
    for process in processes:
        threading.Thread(target=_end_with, args=(process, stopping), daemon=True).start()
    try:
        yield
    except BaseException:
        stopping.set()
        for process in processes:
            process.kill()  # they may wait for us in the middle of something, and keep nothing
        raise
    stopping.set()
    for process in processes:
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    del store  # not before: it is gone with its last name


def die_with_the_leader() -> None:
    """Make the kernel kill this process when its parent is gone (Linux); ignore Ctrl-C and SIGTERM.

    They may reach all processes at once; what follows from them is the leader's to decide. Ends
    this process if the parent is gone already: to start takes seconds.
    """
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.environ.get(LEADER) not in (None, str(os.getppid())):
        sys.exit(FAILED)


def _end_with(process: subprocess.Popen[bytes], stopping: threading.Event) -> None:
    """End this process when a follower has failed: it would wait for it for ever.

    One that ends with 0 was told to, by a leader that has come to its own end.
    """
    code = process.wait()
    if code and not stopping.is_set():
        log.error(
            "A process of this client ended with code %d; ending too. Start again to go on "
            "from the last step.",
            code,
        )
        # A collective operation under way cannot be interrupted from Python.
        os._exit(FAILED)


@contextmanager
def open_process_group(settings: ClientSettings) -> Iterator[ProcessGroup | None]:
    """The process group that the settings ask for, its followers started; None for one process.

    Under torchrun, the processes are already there. Raises InvalidSettings for a GPU where there
    is none, and for more processes than GPUs.
    """
    rank = launched_rank()
    if rank is None and settings.processes == 1:
        yield None
        return
    cpu, count = find_device(settings.device).type == "cpu", torch.cuda.device_count()
    if not cpu and settings.processes > count:
        raise InvalidSettings(
            f"processes = {settings.processes}, and torch finds {count} GPUs: each process needs "
            f"one of its own. Use processes = {count}, or device = 'cpu'."
        )
    with followers(settings.processes - 1) if rank is None else nullcontext():
        process_group = ProcessGroup(cpu=cpu, sharded=settings.shard)
        yield process_group
        # Not after an error: the others may be in the middle of something else then.
        process_group.close()


def load_policy(
    settings: ClientSettings,
    folder: Path,
    card: ModelCard,
    run: RunSettings,
    process_group: ProcessGroup | None = None,
) -> Policy:
    """The run's policy on this process's device, and on those of the leader's followers.

    Each process has its share of the CPU's threads.
    """
    if process_group is not None:
        if process_group.is_leader:
            process_group.broadcast_object((folder, card, run))
        share = max(1, (os.cpu_count() or 1) // process_group.size)
        torch.set_num_threads(settings.threads or share)
    elif settings.threads:
        torch.set_num_threads(settings.threads)
    return Policy.load(
        folder,
        card,
        run,
        device=settings.device if process_group is None else process_group.device,
        mesh=process_group.mesh() if process_group is not None and settings.shard else None,
    )


def run_follower(settings: ClientSettings) -> None:
    """Compute what the leader commands, until it closes."""
    die_with_the_leader()
    with open_process_group(settings) as process_group:
        assert process_group is not None
        policy_of_run: tuple[Path, ModelCard, RunSettings] | None
        policy_of_run = process_group.broadcast_object(None)
        if policy_of_run is None:
            return
        policy = load_policy(settings, *policy_of_run, process_group)
        check_packed_path(policy)
        folder, rank = policy_of_run[0], process_group.rank
        start = partial(start_engine, settings, policy, folder, rank=rank)
        follow(process_group, policy, start, settings.gradient_checkpointing)

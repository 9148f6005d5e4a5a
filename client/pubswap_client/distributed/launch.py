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
from pubswap_client.policy.policy import EMULATED, Policy, emulates_bfloat16, find_device
from pubswap_client.policy.self_check import check_packed_path
from pubswap_client.settings import ClientSettings
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.model import ModelCard
from pubswap_protocol.settings import RunSettings

log = logging.getLogger(__name__)

FAILED = 70  # EX_SOFTWARE
STOP_SECONDS = 10
LEADER = "PUBSWAP_LEADER"  # in a follower's environment: the id of the process that started it
_PR_SET_PDEATHSIG = 1


def launched_rank() -> int | None:
    """This process's rank if it is one of several, launched by us or by torchrun; else None."""
    return int(os.environ["RANK"]) if "RANK" in os.environ else None


@contextmanager
def followers(count: int) -> Iterator[None]:
    """Run `count` copies of this process's command as ranks 1, 2, ...; this process is rank 0.

    They rendezvous through a store on loopback. torch's own store would listen on every address
    and accept anyone, and the processes send each other pickled data.
    """
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    store = dist.TCPStore(  # type: ignore[attr-defined]  # documented, but not in __all__
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
        per_rank = {"RANK": str(rank), "LOCAL_RANK": str(rank), LEADER: str(os.getpid())}
        environment = os.environ | shared | per_rank
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
            process.kill()  # it may be waiting for us, and has nothing to save
        raise
    stopping.set()
    for process in processes:
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    del store  # only now, because the store closes with its last reference


def die_with_the_leader() -> None:
    """Make the kernel kill this process when its parent ends (Linux); ignore signals to stop.

    Those signals may reach all processes at once, and the leader decides how to respond. Exits if
    the parent has ended already, because starting takes seconds.
    """
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.environ.get(LEADER) not in (None, str(os.getppid())):
        sys.exit(FAILED)


def _end_with(process: subprocess.Popen[bytes], stopping: threading.Event) -> None:
    """End this process when a follower fails, because it would wait for the follower forever.

    A follower ends with 0 only if the leader has finished and told it to.
    """
    code = process.wait()
    if code and not stopping.is_set():
        log.error(
            "A process of this client exited with code %d, so the client stops. Start it again "
            "to continue from the last step.",
            code,
        )
        # A running collective operation cannot be interrupted from Python.
        os._exit(FAILED)


@contextmanager
def open_process_group(settings: ClientSettings) -> Iterator[ProcessGroup | None]:
    """Open the process group of the settings and start its followers; yields None for one process.

    Under torchrun, the processes are already running. Raises InvalidSettings if a GPU is requested
    but there is none, or there are more processes than GPUs.
    """
    rank = launched_rank()
    if rank is None and settings.processes == 1:
        yield None
        return
    cpu, count = find_device(settings.device).type == "cpu", torch.cuda.device_count()
    if not cpu and settings.processes > count:
        raise InvalidSettings(
            f"processes = {settings.processes}, but torch finds {count} GPUs, and each process "
            f"needs its own. Use processes = {count}, or device = 'cpu'."
        )
    with followers(settings.processes - 1) if rank is None else nullcontext():
        process_group = ProcessGroup(cpu=cpu, sharded=settings.shard)
        yield process_group
        # Not after an error, because the other processes may be in the middle of a command.
        process_group.close()


def load_policy(
    settings: ClientSettings,
    folder: Path,
    card: ModelCard,
    run: RunSettings,
    process_group: ProcessGroup | None = None,
) -> Policy:
    """Load the run's policy on this process's device; the leader has its followers load it too.

    Each process gets its share of the CPU's threads.
    """
    if process_group is not None:
        if process_group.is_leader:
            process_group.broadcast_object((folder, card, run))
        share = max(1, (os.cpu_count() or 1) // process_group.size)
        torch.set_num_threads(settings.threads or share)
    elif settings.threads:
        torch.set_num_threads(settings.threads)
    device = find_device(settings.device if process_group is None else process_group.device)
    if emulates_bfloat16(settings.dtype, cuda=device.type == "cuda"):
        log.warning("dtype = 'bfloat16': %s.", EMULATED)
    return Policy.load(
        folder,
        card,
        run,
        device=device,
        dtype=settings.dtype,
        mesh=process_group.mesh() if process_group is not None and settings.shard else None,
    )


def run_follower(settings: ClientSettings) -> None:
    """Execute the leader's commands until it closes the group."""
    die_with_the_leader()
    with open_process_group(settings) as process_group:
        assert process_group is not None
        shared: tuple[Path, ModelCard, RunSettings] | None = process_group.broadcast_object(None)
        if shared is None:
            return
        folder, card, run = shared
        policy = load_policy(settings, folder, card, run, process_group)
        check_packed_path(policy, settings.gradient_checkpointing)
        start = partial(start_engine, settings, policy, folder, rank=process_group.rank)
        follow(process_group, policy, start, settings.gradient_checkpointing)

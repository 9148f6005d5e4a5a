"""Serve the application with uvicorn, in this process or in several workers under a supervisor."""

import ctypes
import errno
import gc
import multiprocessing
import os
import signal
import socket
import threading
import time
from contextlib import suppress
from datetime import datetime
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from types import FrameType
from typing import Any

import structlog

from pubswap_protocol.errors import InvalidSettings
from pubswap_server.clock import process_clock, steady
from pubswap_server.http.slow_clients import HeadLimits, guarded_protocol
from pubswap_server.monitoring.logs import configure_logs
from pubswap_server.settings import ServerSettings

log = structlog.get_logger(__name__)

STOP_SECONDS = 30.0
# A worker that cannot even start is not tried in a tight loop.
RESTART_SECONDS = 1.0


def http_options(settings: ServerSettings) -> dict[str, Any]:
    """What to give `uvicorn.Config`; raises InvalidSettings for half a pair of TLS files."""
    return {
        # Not uvicorn's other one, h11: it parses in Python, and uploads come at half the speed.
        "http": guarded_protocol(_limits(settings)),
        "ws": "none",
        "server_header": False,
        "forwarded_allow_ips": settings.trusted_proxies,
        **_tls(settings),
    }


def _limits(settings: ServerSettings) -> HeadLimits:
    return HeadLimits(
        seconds=settings.header_seconds,
        bytes=settings.max_header_bytes,
        idle_seconds=settings.idle_seconds,
    )


def _tls(settings: ServerSettings) -> dict[str, str]:
    if settings.tls_cert is None and settings.tls_key is None:
        return {}
    if settings.tls_cert is None or settings.tls_key is None:
        raise InvalidSettings("TLS needs both: --tls-cert CHAIN.pem --tls-key KEY.pem.")
    for path in (settings.tls_cert, settings.tls_key):
        if not path.is_file():
            raise InvalidSettings(f"The TLS file {path} is not there.")
    return {"ssl_certfile": str(settings.tls_cert), "ssl_keyfile": str(settings.tls_key)}


_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8


def keep_one_arena() -> None:
    """Let threads share one arena: each one's own would keep what it once held."""
    _set({_M_ARENA_MAX: 1})


def keep_heap_small() -> None:
    """Let threads share one arena, and give large pieces back to the system at once.

    glibc's own threshold for that grows with what it has seen.
    """
    _set({_M_ARENA_MAX: 1, _M_MMAP_THRESHOLD: 1 << 20, _M_TRIM_THRESHOLD: 1 << 20})


def _set(options: dict[int, int]) -> None:
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        for option, value in options.items():
            library.mallopt(option, value)


def run_server(settings: ServerSettings, listening: socket.socket) -> None:
    """Serve in this process until SIGTERM or SIGINT; requests under way are finished.

    Exits with status 1 when a background task dies.
    """
    import uvicorn

    from pubswap_server.app import create_app

    keep_heap_small()
    app = create_app(settings)
    # What is there by now stays: no collection needs to look at all the modules again.
    gc.freeze()

    class Server(uvicorn.Server):
        async def on_tick(self, counter: int) -> bool:
            stops = await super().on_tick(counter)
            return stops or app.state.services.background.died

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            # Long polls would otherwise keep a stopping server for up to half a minute.
            app.state.services.changes.close()
            await super().shutdown(sockets)

    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=10,
        lifespan="on",
        **http_options(settings),
    )
    server = Server(config)
    server.run(sockets=[listening])
    if server.started and app.state.services.background.died:
        raise SystemExit(1)  # so that a supervisor starts another; the log says why


def listen(host: str, port: int) -> socket.socket:
    """The socket to serve on; raises InvalidSettings if the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(2048)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise InvalidSettings(
                f"Port {port} on {host} is in use; stop what listens there or choose another "
                "with --port."
            ) from None
        raise InvalidSettings(f"Cannot listen on {host}:{port}: {error.strerror}") from None
    return listening


class Supervisor:
    """Starts the workers and looks after them; it serves nothing itself."""

    def __init__(self, settings: ServerSettings, listening: socket.socket) -> None:
        self._settings, self._listening = settings, listening
        self._workers: dict[int, SpawnProcess] = {}
        self._stop_by: float | None = None

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT, and return when all workers have ended."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        for index in range(self._settings.workers):
            self._start(index)
        while self._workers:
            wait([worker.sentinel for worker in self._workers.values()], timeout=0.5)
            self._replace_the_dead()
            if self._stop_by is not None and time.monotonic() > self._stop_by:
                for worker in self._workers.values():
                    worker.kill()

    def _start(self, index: int) -> None:
        clock = process_clock()
        arguments = (self._settings, self._listening, (clock.now(), steady()))
        # Not forked: a copy of this process would share its connections and locks.
        spawn = multiprocessing.get_context("spawn")
        worker = spawn.Process(target=work, args=arguments, name=f"worker-{index}")
        worker.start()
        self._workers[index] = worker
        # The signal may have come before the worker was known.
        if self._stop_by is not None:
            worker.terminate()

    def _replace_the_dead(self) -> None:
        for index, worker in list(self._workers.items()):
            if worker.is_alive():
                continue
            del self._workers[index]
            if self._stop_by is None:
                log.error("worker died", worker=index, exit_code=worker.exitcode)
                time.sleep(RESTART_SECONDS)
            # Asked again, for a signal may have come while it slept.
            if self._stop_by is None:
                self._start(index)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stop_by = time.monotonic() + STOP_SECONDS
        for worker in list(self._workers.values()):
            worker.terminate()


def work(settings: ServerSettings, listening: socket.socket, clock: tuple[datetime, float]) -> None:
    """One worker: a replica which ends with its parent."""
    configure_logs(settings)
    process_clock().set(*clock)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    run_server(settings, listening)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)

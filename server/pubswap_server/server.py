"""Serve the application with uvicorn, in this process or in several workers."""

import multiprocessing
import os
import resource
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import structlog
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from sqlalchemy.exc import SQLAlchemyError

from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.files import make_private
from pubswap_server.clock import process_clock, steady
from pubswap_server.conductor.ownership import join
from pubswap_server.database.engine import sqlite_locked
from pubswap_server.database.errors import unusable
from pubswap_server.monitoring.logs import configure_logs
from pubswap_server.settings import ServerSettings, operator_token
from pubswap_server.storage.opening import make_storage

log = structlog.get_logger(__name__)

DRAIN_SECONDS = 10  # for requests under way when the server is told to stop
# A worker that does not answer its supervisor for this long is replaced. Imports take seconds.
HUNG_SECONDS = 60
CHECK_SECONDS = 1  # between checks of the background tasks


@contextmanager
def prepared(settings: ServerSettings) -> Iterator[str | None]:
    """Lock SQLite for this process, and see that database and blob store are of one deployment.

    Yields the bucket's address for members, or None if they do not reach it directly.

    Raises StateInUse while another coordinator serves the same SQLite database, because neither
    would hear of the other's changes. (The workers of one coordinator do hear of them, and belong
    to the process that holds the lock.) Raises Unavailable for a database or store that does not
    answer, and InvalidSettings for two that do not belong together, see `ownership`.
    """
    if not make_private(settings.data_dir):
        log.warning("other users of this machine can read the data folder; run chmod 700 on it")
    operator_token(settings)
    with sqlite_locked(settings.sqlalchemy_url):
        storage = make_storage(settings)
        try:
            join(settings, storage.blobs)
        except SQLAlchemyError as error:
            raise unusable(settings.sqlalchemy_url, error) from None
        finally:
            storage.incoming.close()
        yield storage.presigned.url if storage.presigned else None


def http_options(settings: ServerSettings) -> dict[str, Any]:
    """Options of `uvicorn.Config`; raises InvalidSettings for unusable TLS files."""
    certificate, key = settings.tls_cert, settings.tls_key
    if (certificate is None) != (key is None):
        raise InvalidSettings("TLS needs both: --tls-cert CHAIN.pem --tls-key KEY.pem.")
    for path in (certificate, key):
        if path is not None and not path.is_file():
            raise InvalidSettings(f"There is no TLS file {path}.")
    if certificate is not None:
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, key, password=partial(_refuse_encrypted, key))
        except PermissionError:
            raise InvalidSettings(f"This user may not read {certificate} or {key}.") from None
        except OSError as error:
            raise InvalidSettings(
                f"{certificate} and {key} are no certificate and its key, as PEM: {error}"
            ) from None
    return {
        # uvicorn's h11 parses in Python, which halves the speed of uploads.
        "http": "httptools",
        "ws": "none",
        "server_header": False,
        "forwarded_allow_ips": settings.trusted_proxies,
        "ssl_certfile": settings.tls_cert,
        "ssl_keyfile": settings.tls_key,
    }


def _refuse_encrypted(key: Path | None) -> NoReturn:
    # Without this, OpenSSL asks for the pass phrase, also where nobody can answer.
    raise InvalidSettings(
        f"{key} is encrypted, and the coordinator, which must be able to restart by itself, asks "
        "for no pass phrase. `openssl pkey -in KEY.pem -out DECRYPTED.pem` decrypts it."
    )


OPEN_FILES = (1 << 16, 10_240)  # macOS refuses more than the second, whatever the hard limit


def allow_open_files() -> None:
    """Raise this process's limit on open files as far as allowed, up to `OPEN_FILES`.

    Each member has a connection, and shells set 1,024 for programs that still use select().
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in OPEN_FILES:
        target = limit if hard == resource.RLIM_INFINITY else min(hard, limit)
        if soft == resource.RLIM_INFINITY or soft >= target:
            return
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
            return


def make_routes(app: FastAPI) -> None:
    """Let FastAPI analyse all routes' parameters now.

    Otherwise it would do so at the first requests, group by group, and block the event loop for up
    to 0.05 s each time.
    """
    for _ in iter_route_contexts(app.routes):
        pass


def listen(host: str, port: int) -> socket.socket:
    """The listening socket; raises InvalidSettings if the address cannot be bound."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with ExitStack() as stack:
        try:
            listening = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host, port))
            listening.listen(2048)
        except (OSError, TypeError) as error:  # TypeError for a name that no host can have
            reason = error.strerror if isinstance(error, OSError) else "not a host's name"
            raise InvalidSettings(
                f"Cannot listen on {host}:{port}: {reason}. See --host and --port."
            ) from None
        stack.pop_all()
    return listening


def run_server(settings: ServerSettings, listening: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT; requests under way are finished.

    Exits with status 1 when a background task dies. With several workers, that one is replaced.
    """
    import uvicorn
    from uvicorn.config import STARTUP_FAILURE
    from uvicorn.supervisors import Multiprocess

    allow_open_files()
    process = ServingProcess(settings)
    config = uvicorn.Config(
        process,
        factory=True,
        workers=settings.workers,
        log_config=None,
        access_log=False,
        lifespan="on",
        timeout_graceful_shutdown=DRAIN_SECONDS,
        timeout_worker_healthcheck=HUNG_SECONDS,
        callback_notify=process.check,
        timeout_notify=CHECK_SECONDS,
        **http_options(settings),
    )
    if settings.workers > 1:
        supervisor = Multiprocess(config, [listening])
        supervisor.run()
        if any(worker.exitcode == STARTUP_FAILURE for worker in supervisor.processes):
            raise SystemExit(STARTUP_FAILURE)
    else:
        # uvicorn raises the signal again once everything is closed.
        signal.signal(signal.SIGTERM, process.exit)
        uvicorn.Server(config).run([listening])


class ServingProcess:
    """The application's factory and health check, pickled for each of uvicorn's workers."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._clock = process_clock().now(), steady()
        self._app: FastAPI
        self._died = False

    def __call__(self) -> FastAPI:
        from pubswap_server.app import create_app

        if (parent := multiprocessing.parent_process()) is not None:
            configure_logs(self._settings.log_format, self._settings.log_level)
            process_clock().set(*self._clock)
            threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
        self._app = create_app(self._settings)
        make_routes(self._app)
        return self._app

    async def check(self) -> None:
        """Stop the process when a background task has died."""
        background = self._app.state.services.background
        if background.done() and not background.cancelled():
            self._died = True
            os.kill(os.getpid(), signal.SIGTERM)

    def exit(self, number: int, frame: FrameType | None) -> None:
        """Exit with 1 after a background task died, so that a supervisor starts another process."""
        raise SystemExit(int(self._died))


def _end_with(parent: BaseProcess) -> None:
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)

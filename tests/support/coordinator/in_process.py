"""A coordinator without processes, sockets or threads: a request is a function call.

It is for thousands of short sequences. The application is the real one on a real folder and SQLite;
the conductor works only when told to, and a crash drops everything where it stands.
"""

import asyncio
import contextlib
import logging
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx
import structlog
from sqlalchemy import Engine, event
from sqlalchemy.engine.default import DefaultDialect

from pubswap_protocol import files
from pubswap_server import app as application
from pubswap_server.clock import process_clock, wall
from pubswap_server.conductor import conductor
from pubswap_server.database import engine
from pubswap_server.runs.progress.heartbeats import WriteBehind
from pubswap_server.settings import ServerSettings
from pubswap_server.storage import local
from pubswap_server.storage.spool import Spool

_WRITES = ("INSERT", "UPDATE", "DELETE")


class KilledServer(BaseException):
    """The process is dead; no code handles this."""


class InProcess:
    """One coordinator at a time on one folder, which begins as a copy of a template."""

    def __init__(self, settings: ServerSettings, template: Path) -> None:
        self._app = application.create_app(settings)
        self._template = template
        self._folder = settings.data_dir
        self._loop = asyncio.new_event_loop()
        self._http = httpx.AsyncClient(
            transport=httpx.ASGITransport(self._app), base_url="http://coordinator"
        )
        self._living: Any = None
        self.points_left: int | None = None  # points to pass before it is killed

    def begin(self) -> None:
        """Make a new folder, and start a coordinator on it."""
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.copytree(self._template, self._folder)
        process_clock().set(wall())
        self.start()

    def start(self) -> None:
        """Start a coordinator on the folder as it is."""
        self.points_left = None
        self._living = self._app.router.lifespan_context(self._app)
        self._loop.run_until_complete(self._living.__aenter__())

    def crash(self) -> None:
        """Stop at once, without any notice."""
        living, self._living = self._living, None
        if living is not None:
            self._app.state.services.heartbeats.flush = _nothing
            self._loop.run_until_complete(living.__aexit__(None, None, None))

    def close(self) -> None:
        """Crash, and release everything."""
        self.crash()
        self._loop.run_until_complete(self._http.aclose())
        self._loop.close()
        process_clock().set(wall())

    def request(self, method: str, path: str, token: str, **options: Any) -> httpx.Response:
        """Make a request; raises KilledServer if it is killed before the response."""
        headers = {"Authorization": f"Bearer {token}", **options.pop("headers", {})}
        return self._loop.run_until_complete(
            self._http.request(method, path, headers=headers, **options)
        )

    def conduct(self, run: str) -> None:
        """Have the conductor advance a run; raises KilledServer if it is killed.

        Before that, write which members were heard from.
        """
        left, self.points_left = self.points_left, None
        self._loop.run_until_complete(self._app.state.services.heartbeats.flush())
        self.points_left = left
        self._loop.run_until_complete(conductor.advance(self._app.state.services, run))

    def rows(self, query: str, *values: Any) -> list[Any]:
        """Query the database directly, past the coordinator."""
        with contextlib.closing(sqlite3.connect(self._folder / "pubswap.sqlite")) as connection:
            return connection.execute(query, values).fetchall()

    def pass_by(self, seconds: float) -> None:
        """Advance the clock."""
        clock = process_clock()
        clock.set(clock.now() + timedelta(seconds=seconds))

    def point(self) -> None:
        """Pass a point at which it may be killed."""
        if self.points_left is not None:
            self.points_left -= 1
            if self.points_left < 0:
                raise KilledServer


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Log errors only, which are bugs of the product."""
    previous = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        yield
    finally:
        structlog.configure(**previous)


@contextlib.contextmanager
def one_thread(settings: ServerSettings, template: Path) -> Iterator[InProcess]:
    """Patch the process to run the coordinator in one thread, and undo it afterwards."""
    with contextlib.ExitStack() as patches:
        for owner, name, value in _patches():
            patches.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        coordinator = InProcess(settings, template)
        _points(coordinator, patches)
        try:
            yield coordinator
        finally:
            coordinator.close()


def _patches() -> Iterator[tuple[Any, str, Any]]:
    async def inline(call: Callable[..., Any], *args: Any, **_: Any) -> Any:
        return call(*args)

    async def never(services: Any) -> None:
        """Do nothing: the tests ask for this work themselves."""
        await asyncio.Future()  # a background task that returns counts as dead

    def unlock(self: Any) -> None:
        os.close(self._lock)  # only what the end of a process does

    yield anyio.to_thread, "run_sync", inline
    yield application, "migrate", lambda url: None  # the template is migrated already
    yield application, "conduct", never
    yield application, "keep_house", never
    yield WriteBehind, "flush_for_ever", never
    yield application, "remember_kept", _nothing
    yield Spool, "close", unlock
    # Each life has its own connections, but all share the cache of compiled statements.
    yield engine, "sqlite_engine", cache(engine.sqlite_engine)


def _points(coordinator: InProcess, patches: contextlib.ExitStack) -> None:
    """Put points before and after each commit that changes something and each blob's rename."""
    commit, publish = DefaultDialect.do_commit, files.publish
    writes = False

    def executing(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        nonlocal writes
        writes = writes or statement.startswith(_WRITES)

    def committing(self: Any, connection: Any) -> None:
        nonlocal writes
        changes, writes = writes, False
        if changes:
            coordinator.point()
        commit(self, connection)
        if changes:
            coordinator.point()

    def publishing(temporary: Path, target: Path) -> None:
        coordinator.point()
        publish(temporary, target)
        coordinator.point()

    event.listen(Engine, "before_cursor_execute", executing)
    patches.callback(event.remove, Engine, "before_cursor_execute", executing)
    patches.callback(setattr, DefaultDialect, "do_commit", commit)
    patches.callback(setattr, local, "publish", publish)
    DefaultDialect.do_commit = committing  # type: ignore[method-assign]
    local.publish = publishing


async def _nothing(*_: object, **__: object) -> None:
    """Write nothing, as a dead process would."""

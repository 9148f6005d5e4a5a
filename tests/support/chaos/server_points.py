"""Named points in a coordinator's life, traced to a file; at one of them it kills itself.

They are wrapped around the product's functions from outside. A point's name begins with the request
at work or `conductor`, then the transition of the run that a commit makes, if any: `finish upload:
file synced`, `conductor aggregated: before commit`.
"""

import importlib
import json
import os
import re
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from support.chaos import false_time

REQUESTS = {
    "open upload": r"POST .*/blobs/uploads",
    "chunk": r"PATCH .*/blobs/uploads/\w+",
    "finish upload": r"PUT .*/blobs/uploads/\w+",
    "update": r"POST .*/rounds/\d+/update",
    "responses": r"POST .*/public-steps/\d+/responses",
    "exchanged": r"GET .*/public-steps/\d+/exchanged",
}
CONDUCTOR = "conductor"
CONSTANTS = "TESTS_CONSTANTS"
_WRITES = ("INSERT", "UPDATE", "DELETE")

_at_work: ContextVar[str | None] = ContextVar("at_work", default=None)


class ServerPoints:
    """Writes the name of each point passed; the process is killed at the `last` one."""

    def __init__(self, trace: Path, last: str | None) -> None:
        self._last = last
        self._trace = os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.of_thread = threading.local()  # a transaction lives in one thread

    def hit(self, what: str) -> None:
        """Pass a point, or die there, if a named request or the conductor is at work."""
        who = _at_work.get()
        if who is None:
            return
        name = f"{who}: {what}"
        os.write(self._trace, f"{name}\n".encode())
        if name == self._last:
            os.kill(os.getpid(), signal.SIGKILL)


def constants(values: Mapping[str, float]) -> dict[str, str]:
    """The environment of a process that overrides these constants, by module and name."""
    return {CONSTANTS: json.dumps(dict(values))}


def install(trace: Path, last: str | None) -> None:
    """Wrap this process's coordinator in points."""
    for name, value in json.loads(os.environ.get(CONSTANTS, "{}")).items():
        module, _, constant = name.rpartition(".")
        setattr(importlib.import_module(module), constant, value)
    false_time.install()
    points = ServerPoints(trace, last)
    _around_storage(points)
    _around_commits(points)
    _around_the_application(points)


class _Located:
    """Notes the request at work, and puts a point before a successful response's first byte."""

    def __init__(self, app: Any, points: ServerPoints) -> None:
        self.app = app
        self.points = points

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            # The conductor's task is created here. So is maintenance's, which has nothing to do.
            _at_work.set(CONDUCTOR)
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        asked = f"{scope['method']} {scope['path']}"
        names = [name for name, form in REQUESTS.items() if re.fullmatch(form, asked)]
        _at_work.set(names[0] if names else None)

        async def sending(message: Any) -> None:
            if message["type"] == "http.response.start" and message["status"] < 300:
                self.points.hit("before reply")
            await send(message)

        await self.app(scope, receive, sending)


def _around_the_application(points: ServerPoints) -> None:
    from pubswap_server import app

    make = app.create_app

    def create_app(settings: Any) -> Any:
        application = make(settings)
        application.add_middleware(_Located, points=points)
        return application

    app.create_app = create_app


def _around_storage(points: ServerPoints) -> None:
    from pubswap_protocol import files
    from pubswap_server.storage.local import LocalBlobs

    sync, replace = files.sync, Path.replace
    write = LocalBlobs.write

    def syncing(path: Path) -> None:
        if path.is_dir():
            sync(path)
            points.hit("folder synced")
            return
        points.hit("before file synced")
        sync(path)
        points.hit("file synced")

    def replacing(self: Path, target: Path) -> Path:
        renamed = replace(self, target)
        points.hit("renamed")
        return renamed

    def writing(self: LocalBlobs, parts: Iterable[bytes], *args: Any) -> tuple[str, int]:
        blob = write(self, halfway(parts), *args)
        points.hit("blob written")
        return blob

    def halfway(parts: Iterable[bytes]) -> Iterator[bytes]:
        for number, part in enumerate(parts):
            yield part
            if number == 1:
                points.hit("blob half made")

    files.sync = syncing
    Path.replace = replacing  # type: ignore[assignment,method-assign]
    LocalBlobs.write = writing  # type: ignore[method-assign]


def _around_commits(points: ServerPoints) -> None:
    from sqlalchemy import Engine, event
    from sqlalchemy.engine.default import DefaultDialect

    from pubswap_server.runs import runs

    move, commit, rollback = runs.move, DefaultDialect.do_commit, DefaultDialect.do_rollback

    def moving(session: Any, run: Any, transition: Any, **details: Any) -> None:
        points.of_thread.moves = f"{transition.__name__}, "
        move(session, run, transition, **details)

    def committing(self: Any, connection: Any) -> None:
        writes, moves = _popped(points, "writes"), _popped(points, "moves")
        if writes:
            points.hit(f"{moves}before commit")
        commit(self, connection)
        if writes:
            points.hit(f"{moves}committed")

    def rolling_back(self: Any, connection: Any) -> None:
        points.of_thread.writes = points.of_thread.moves = ""
        rollback(self, connection)

    def executing(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith(_WRITES):
            points.of_thread.writes = "yes"

    runs.move = moving
    DefaultDialect.do_commit = committing  # type: ignore[method-assign]
    DefaultDialect.do_rollback = rolling_back  # type: ignore[method-assign]
    event.listen(Engine, "before_cursor_execute", executing)


def _popped(points: ServerPoints, name: str) -> str:
    value: str = getattr(points.of_thread, name, "")
    setattr(points.of_thread, name, "")
    return value

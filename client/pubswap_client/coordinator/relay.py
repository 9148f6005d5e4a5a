"""`pubswap relay`: forwards a folder's requests to one coordinator, and writes the answers there.

All its state is in files, so it may be killed at any point. A request that was forwarded but not
answered is forwarded again; to the coordinator that looks like a client's retry after a lost
answer. An answered request is never forwarded again.
"""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import httpx
from pydantic import ValidationError

from pubswap_client.coordinator.route import UNANSWERED, open_http, parsed_url, proxy_to
from pubswap_client.coordinator.spool import (
    ANSWER,
    LARGEST_BYTES,
    NAME,
    REQUEST,
    TEMPORARY,
    Answered,
    Asked,
    Draft,
    Refused,
    body,
    look_again,
    private_folder,
    read,
)
from pubswap_client.coordinator.tls import TlsFiles
from pubswap_protocol import paths
from pubswap_protocol.command_line.locking import lock
from pubswap_protocol.errors import Unreachable
from pubswap_protocol.files import write_whole

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
IDLE_SECONDS = 3.0  # without a request or an answer, after which `once` ends
AT_ONCE = 64
REMEMBERED = 100_000  # answered requests, which must not be forwarded again
RETENTION_SECONDS = 24 * 3600.0  # of files that nobody has taken
# The headers of a member's requests; others in a file are not forwarded.
FORWARDED = {
    *("accept", "accept-encoding", "authorization", "content-length", "content-range"),
    *("content-type", "if-range", "range", "user-agent"),
    *(paths.IDEMPOTENCY_HEADER.lower(), paths.PROTOCOL_HEADER.lower()),
}
# The headers of an answer that a member reads.
ANSWERED = {
    *("content-encoding", "content-length", "content-range", "content-type", "etag", "location"),
    *("retry-after", paths.ROUND_HEADER.lower(), paths.WAITS_HEADER.lower()),
}


class AnsweredRequests:
    """The names of the last answered requests, in a file. Thread-safe."""

    def __init__(self, path: Path) -> None:
        """Read what an earlier process wrote. At least the last REMEMBERED names are kept."""
        self._path, self._lock = path, threading.Lock()
        names = path.read_text(errors="replace").split() if path.exists() else []
        self._names = dict.fromkeys(names)  # an ordered set
        self._shorten()  # this also terminates a line that a kill cut off

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def add(self, name: str) -> None:
        with self._lock:
            self._names[name] = None
            if len(self._names) > 2 * REMEMBERED:
                self._shorten()
            else:
                with self._path.open("a") as file:
                    file.write(f"{name}\n")

    def _shorten(self) -> None:
        self._names = dict.fromkeys([*self._names][-REMEMBERED:])
        write_whole(self._path, "".join(f"{name}\n" for name in self._names).encode())


class Relay:
    """Forwards one folder's requests to one coordinator, whatever they contain."""

    def __init__(self, folder: Path, url: str, tls: TlsFiles) -> None:
        """Raises InvalidSettings if others can access the folder."""
        self._folder = private_folder(folder)
        self._url = parsed_url(url.rstrip("/"))
        self._tls = tls
        self._busy: set[str] = set()
        self._refused: set[tuple[str, int, int]] = set()  # name, size and time, as they were

    def run(self, once: bool = False) -> None:
        """Forward requests until the process is stopped or, with `once`, until none are left.

        Raises Held if another relay serves the folder.
        """
        with lock(self._folder / "lock"):
            self._done = AnsweredRequests(self._folder / "done")
            self._http = open_http(self._url, self._tls, proxy_to(self._url, self._tls))
            self._swept, self._active = -RETENTION_SECONDS, time.monotonic()
            failing = False
            while not once or self._busy or time.monotonic() - self._active < IDLE_SECONDS:
                try:
                    self._look()
                    failing = False
                except OSError as error:  # a network disk may come back
                    if not failing:
                        log.warning("%s: %s. Trying again.", self._folder, error.strerror)
                    failing = True
                time.sleep(LOOK_SECONDS)
            self._http.close()

    def _look(self) -> None:
        """Start forwarding new requests, and sometimes remove old files."""
        look_again(self._folder)
        for path in self._waiting():
            self._busy.add(path.name)
            # Daemon threads, not joined at the end: unanswered requests stay in the folder.
            threading.Thread(target=self._serve, args=(path,), daemon=True).start()
        if time.monotonic() - self._swept > RETENTION_SECONDS / 24:
            self._sweep()
            self._swept = time.monotonic()

    def _waiting(self) -> Iterator[Path]:
        for path in self._folder.glob(f"*{REQUEST}"):
            if len(self._busy) >= AT_ONCE:
                return
            handled = path.name in self._busy or _as_it_is(path) in self._refused
            if not handled and NAME.fullmatch(path.stem):
                yield path

    def _serve(self, path: Path) -> None:
        """Forward one request, unless it was answered before or is not valid."""
        try:
            if path.stem in self._done:
                path.unlink()
                log.warning("%s was answered before; it was removed.", path)
                return
            if not path.with_suffix(ANSWER).exists():
                self._forward(path)
            self._done.add(path.stem)
            path.unlink(missing_ok=True)
        except Refused as error:
            self._refuse(path, error)
        except FileNotFoundError:
            pass  # it was withdrawn, or answered after it was found
        except OSError as error:
            log.warning("%s: %s. Trying again.", path, error.strerror)
            time.sleep(IDLE_SECONDS)
        finally:
            self._active = time.monotonic()  # the client that waited for this may ask again now
            self._busy.discard(path.name)

    def _forward(self, path: Path) -> None:
        asked, file, size = read(path, Asked)
        with file, Draft(path.with_suffix(ANSWER)) as draft:
            request = self._request(asked, body(file, size), size)
            try:
                answered = self._answered(request, path.stem, draft)
            except UNANSWERED as error:
                problem = Unreachable(
                    f"The relay cannot reach the coordinator at {self._url} ({error})."
                ).problem()
                draft.add(problem.model_dump_json().encode())
                headers = [("content-type", paths.PROBLEM_TYPE)]
                answered = Answered(name=path.stem, status=problem.status, headers=headers)
            draft.finish(answered)

    def _answered(self, request: httpx.Request, name: str, draft: Draft) -> Answered:
        """The coordinator's answer; its body goes to the draft. Raises UNANSWERED."""
        with closing(self._http.send(request, stream=True)) as reply:
            headers = [each for each in reply.headers.multi_items() if each[0] in ANSWERED]
            try:
                answered = Answered(name=name, status=reply.status_code, headers=headers)
            except ValidationError as error:
                reason = f"not a coordinator's answer: {error.errors()[0]['msg']}"
                raise httpx.RemoteProtocolError(reason) from None
            size = 0
            try:
                for piece in reply.iter_raw():
                    size += len(piece)
                    if size > LARGEST_BYTES:
                        return answered.model_copy(update={"cut": True})
                    draft.add(piece)
            except httpx.HTTPError:
                return answered.model_copy(update={"cut": True})
        return answered

    def _request(self, asked: Asked, content: Iterator[bytes], size: int) -> httpx.Request:
        """A request to this relay's own coordinator, and to no other host or service."""
        headers = {key: value for key, value in asked.headers if key.lower() in FORWARDED}
        lengths = [value for key, value in headers.items() if key.lower() == "content-length"]
        if lengths not in ([], [str(size)]) or (size and not lengths):
            raise Refused(f"its body has {size} bytes, unlike its Content-Length")
        try:
            url = self._url.copy_with(raw_path=asked.target.encode("ascii"))
            request = self._http.build_request(
                asked.method, url, headers=headers, content=content if size else None
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise Refused(f"it is not a valid request ({error})") from None
        # The path as it would be requested, without an escaped `..` that a server may resolve.
        path = request.url.path
        if not path.startswith(self._url.path.rstrip("/") + "/v1/") or ".." in path.split("/"):
            raise Refused(f"{asked.target} is not one of the coordinator's paths")
        return request

    def _refuse(self, path: Path, error: Refused) -> None:
        """Log it once, and leave the file: it may be somebody else's, or still incomplete."""
        self._refused.add(_as_it_is(path))
        log.warning("%s is not forwarded: %s.", path, error)

    def _sweep(self) -> None:
        """Remove old files of daemons and relays that were killed."""
        oldest = time.time() - RETENTION_SECONDS
        for path in self._folder.iterdir():
            match = NAME.fullmatch(path.name.partition(".")[0])
            if match and path.suffix in (REQUEST, ANSWER, TEMPORARY):
                with suppress(OSError):
                    if path.lstat().st_mtime < oldest:
                        path.unlink()


def _as_it_is(path: Path) -> tuple[str, int, int]:
    """A file's name, size and modification time, to detect changes."""
    try:
        status = path.lstat()
    except OSError:
        return path.name, 0, 0
    return path.name, status.st_size, status.st_mtime_ns

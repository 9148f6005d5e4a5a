"""The ledger on disk: an entry is there, whole and synced, before its request may leave.

    STATE/ledger/2026-11-23.jsonl   one day's entries (UTC), each chained to the one before
    STATE/ledger/head               number and hash of the last entry, so that a cut end shows
    STATE/ledger/bodies/HEX         bodies that are no JSON, by their digest: responses; adapters
                                    if the settings say so

Secrets are not in it: the token travels in a header, and of an enrolment there is only a digest.
"""

import fcntl
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from pubswap_client.ledger.entry import BEGINNING, Damaged, Entry, described
from pubswap_client.state.files import append_durably, write_whole
from pubswap_protocol.digests import Digester, hexadecimal
from pubswap_protocol.errors import LedgerDamaged, NotSaved

LARGEST_CONTENT = 1 << 20  # bytes of a body that is held in an entry; a larger one is kept apart


def ledger_folder(state: Path) -> Path:
    """Where a state folder keeps its ledger."""
    return state / "ledger"


def day_files(folder: Path) -> list[Path]:
    """The days, in order."""
    return sorted(folder.glob("????-??-??.jsonl"))


def body_path(folder: Path, digest: str) -> Path:
    """Where a kept body is."""
    return folder / "bodies" / hexadecimal(digest)


class Ledger:
    """Appends entries; several processes and threads may have one folder's open."""

    def __init__(
        self,
        state: Path,
        keep_adapters: bool = False,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._folder = ledger_folder(state)
        self._keep_adapters = keep_adapters
        self._clock = clock
        self._thread = threading.Lock()
        self._seen: tuple[Path, int, Entry] | None = None  # a day, its size, and its last entry

    def record(self, method: str, target: str, media_type: str, pieces: Iterable[bytes]) -> None:
        """Record a request that is about to be sent.

        Raises NotSaved if the disk does not take it, and LedgerDamaged if its end was changed:
        nothing may be sent then.
        """
        what = described(method, target)
        is_json = media_type.startswith("application/json")
        keep = not is_json and (what["kind"] != "adapter" or self._keep_adapters)
        digester, size, held = Digester(), 0, bytearray()
        for piece in pieces:
            digester.update(piece)
            size += len(piece)
            if keep or (is_json and size <= LARGEST_CONTENT):
                held += piece
        readable = is_json and 0 < size <= LARGEST_CONTENT and what["kind"] != "enrolment"
        kept = keep and size > 0
        with self._locked():
            if kept:
                (self._folder / "bodies").mkdir(mode=0o700, exist_ok=True)
                write_whole(body_path(self._folder, digester.digest()), bytes(held))
            self._append(
                lambda number, at, previous: Entry(
                    **what,
                    number=number,
                    at=at,
                    method=method,
                    target=target,
                    size=size,
                    digest=digester.digest(),
                    content=json.loads(bytes(held)) if readable else None,
                    kept=kept,
                    previous=previous,
                )
            )

    def _append(self, make: Callable[[int, str, str], Entry]) -> None:
        last_file, last = self._last()
        now = self._clock().astimezone(UTC)
        at = f"{now:%Y-%m-%dT%H:%M:%S}.{now.microsecond // 1000:03}Z"
        # A clock that goes back must not bring the days out of order.
        path = max(self._folder / f"{at[:10]}.jsonl", last_file or self._folder)
        entry = make(last.number + 1 if last else 1, at, last.hash if last else BEGINNING)
        size = append_durably(path, entry.line())
        self._seen = (path, size, entry)
        head = self._folder / "head.tmp"
        head.write_text(f"{entry.number} {entry.hash}\n")
        head.replace(self._folder / "head")

    def _last(self) -> tuple[Path | None, Entry | None]:
        days = day_files(self._folder)
        if not days:
            return None, None
        if self._seen and self._seen[:2] == (days[-1], days[-1].stat().st_size):
            return days[-1], self._seen[2]
        try:
            return days[-1], _last_entry(days[-1])
        except Damaged:
            raise LedgerDamaged(
                f"The end of {days[-1]} is not what was written there, so nothing is sent. See "
                "`pubswap client audit verify`; to begin a new ledger, move "
                f"{self._folder} away and keep it."
            ) from None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._thread:
            try:
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                descriptor = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
                    yield
                finally:
                    os.close(descriptor)
            except OSError as error:
                raise NotSaved(
                    f"The ledger in {self._folder} does not take an entry: {error.strerror}. "
                    "Nothing was sent without one; make room and start again."
                ) from None


@contextmanager
def at_rest(folder: Path) -> Iterator[None]:
    """Keep entries from being added meanwhile; a copy of a ledger has no lock, and needs none."""
    lock = folder / "lock"
    with ExitStack() as stack:
        if lock.exists():
            fcntl.flock(stack.enter_context(lock.open("rb")), fcntl.LOCK_SH)
        yield


def _last_entry(path: Path) -> Entry | None:
    """The last entry of a day; a line that was never finished is cut off: nothing of it was sent.

    None if a crash left the day without an entry. Raises Damaged.
    """
    data = path.read_bytes()
    end = data.rfind(b"\n") + 1
    if end < len(data):
        os.truncate(path, end)
    if end == 0:
        before = [day for day in day_files(path.parent) if day < path]
        return _last_entry(before[-1]) if before else None
    return Entry.parse(data[data.rfind(b"\n", 0, end - 1) + 1 : end])

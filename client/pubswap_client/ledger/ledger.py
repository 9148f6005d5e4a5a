"""The ledger on disk: an entry is complete and synced before its request may be sent.

    STATE/ledger/2026-11-23.jsonl   one day's entries (UTC), each chained to the one before
    STATE/ledger/head               number and hash of the last entry, to detect truncation
    STATE/ledger/bodies/HEX         bodies that are not JSON, or large, by their digest: responses

It holds no secrets: the token is sent in a header, and an enrolment is recorded by its digest only.
"""

import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path

from pubswap_client.ledger.entry import BEGINNING, Damaged, Entry, described
from pubswap_protocol.command_line.locking import waiting
from pubswap_protocol.digests import PATTERN, Digester, hexadecimal
from pubswap_protocol.errors import LedgerDamaged, NotSaved
from pubswap_protocol.files import append_durably, remedy, write_whole

_HEAD = re.compile(rb"(\d+) (" + PATTERN.strip("^$").encode() + rb")\n")

LARGEST_CONTENT = 1 << 20  # bytes of a body that is stored in its entry; larger ones get a file


def ledger_folder(state: Path) -> Path:
    return state / "ledger"


def day_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("????-??-??.jsonl"))


def body_path(folder: Path, digest: str) -> Path:
    return folder / "bodies" / hexadecimal(digest)


class Ledger:
    """Appends entries; several processes and threads may use the same folder."""

    def __init__(
        self,
        state: Path,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._folder = ledger_folder(state)
        self._clock = clock
        self._thread = threading.Lock()
        self._seen: tuple[Path, int, Entry] | None = None  # a day, its size, and its last entry

    def record(
        self,
        method: str,
        target: str,
        media_type: str,
        pieces: Iterable[bytes],
        round_: int | None = None,
    ) -> None:
        """Record a request that is about to be sent; `round_` is its round unless the path has one.

        Raises NotSaved if the entry cannot be written, and LedgerDamaged if the ledger's end was
        changed. Nothing may be sent then.
        """
        what = {"round": round_, **described(method, target)}
        hold = what["kind"] not in ("enrolment", "adapter")
        digester, size, held = Digester(), 0, bytearray()
        for piece in pieces:
            digester.update(piece)
            size += len(piece)
            if hold:
                held += piece
        readable = media_type.startswith("application/json") and len(held) <= LARGEST_CONTENT
        kept = bool(held) and not readable
        with self._locked():
            if kept:
                (self._folder / "bodies").mkdir(mode=0o700, exist_ok=True)
                write_whole(body_path(self._folder, digester.digest()), bytes(held))
            last_file, last = self._last()
            now = self._clock().astimezone(UTC)
            entry = Entry(
                **what,
                number=last.number + 1 if last else 1,
                at=f"{now:%Y-%m-%dT%H:%M:%S}.{now.microsecond // 1000:03}Z",
                method=method,
                target=target,
                size=size,
                digest=digester.digest(),
                content=json.loads(bytes(held)) if readable and held else None,
                kept=kept,
                previous=last.hash if last else BEGINNING,
            )
            # A clock that goes back must not put the days out of order.
            path = max(self._folder / f"{entry.at[:10]}.jsonl", last_file or self._folder)
            self._seen = (path, append_durably(path, entry.line()), entry)
            write_head(self._folder, entry.number, entry.hash)

    def _last(self) -> tuple[Path | None, Entry | None]:
        """The last day's file and the last entry; raises LedgerDamaged if an end is missing."""
        days = day_files(self._folder)
        if not days and not (self._folder / "head").exists():
            # Before the first entry, so that no crash leaves entries without a head.
            write_head(self._folder, 0, BEGINNING)
        end, last = self._read_last(days)
        self._check_head(last)
        if not days:
            return None, None
        if end < days[-1].stat().st_size:
            os.truncate(days[-1], end)  # an unfinished line, whose request was not sent
        return days[-1], last

    def _read_last(self, days: list[Path]) -> tuple[int, Entry | None]:
        """The end of the last entry in the last day's file, and the last entry of all days."""
        if self._seen and days and self._seen[:2] == (days[-1], days[-1].stat().st_size):
            return self._seen[1:]
        for path in reversed(days):
            data = path.read_bytes()
            if end := data.rfind(b"\n") + 1:
                try:
                    entry = Entry.parse(data[data.rfind(b"\n", 0, end - 1) + 1 : end])
                except Damaged:
                    raise self._damaged(f"the end of {path.name} was changed") from None
                return end if path == days[-1] else 0, entry
        return 0, None

    def _check_head(self, last: Entry | None) -> None:
        number, hash_ = (last.number, last.hash) if last else (0, BEGINNING)
        try:
            head_number, head_hash = read_head(self._folder)
        except Damaged:
            raise self._damaged("head is missing, or was changed") from None
        if head_number > number:
            raise self._damaged(f"entries {number + 1} to {head_number} are missing")
        # A crash after an entry leaves the head behind, and nothing is missing.
        if head_number == number and head_hash != hash_:
            raise self._damaged(f"entry {number} is a different one")

    def _damaged(self, fault: str) -> LedgerDamaged:
        return LedgerDamaged(
            f"{self._folder}: {fault}, so nothing is sent. Run `pubswap client audit verify`. "
            "Restore its files; or, to begin a new ledger, move that folder away and keep it."
        )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._thread:
            try:
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                with waiting(self._folder / "lock"):
                    yield
            except OSError as error:
                raise NotSaved(
                    f"The ledger in {self._folder} cannot be written: {error.strerror}. Nothing is "
                    f"sent without an entry; {remedy(error)} and start again."
                ) from None


def at_rest(folder: Path) -> AbstractContextManager[None]:
    """Keep entries from being added meanwhile. A copy of a ledger has no lock and needs none."""
    lock = folder / "lock"
    return waiting(lock, shared=True) if lock.exists() else nullcontext()


def read_head(folder: Path) -> tuple[int, str]:
    """The number and hash of the last entry; raises Damaged if the head is missing or malformed."""
    try:
        match = _HEAD.fullmatch((folder / "head").read_bytes())
    except FileNotFoundError:
        match = None
    if match is None:
        raise Damaged
    return int(match[1]), match[2].decode()


def write_head(folder: Path, number: int, hash_: str) -> None:
    """Write the last entry's number and hash, durably; raises NotSaved."""
    write_whole(folder / "head", f"{number} {hash_}\n".encode())

"""The ledger: every request to the coordinator, complete and synced before it may be sent.

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
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, Field, JsonValue

from pubswap_protocol import paths
from pubswap_protocol.command_line.locking import waiting
from pubswap_protocol.digests import PATTERN, Digester, digest_of, digest_of_file, hexadecimal
from pubswap_protocol.errors import LedgerDamaged, NotSaved
from pubswap_protocol.files import append_durably, remedy, write_whole

BEGINNING = digest_of(b"")  # `previous` of the first entry
LARGEST_CONTENT = 1 << 20  # bytes of a body that is stored in its entry; larger ones get a file

KINDS = {
    ("POST", paths.ENROLL): "enrolment",
    ("POST", paths.HELLO): "hello",
    ("POST", paths.HEARTBEAT): "heartbeat",
    ("POST", paths.AWAY): "away",
    ("POST", paths.LINK): "question",
    ("POST", paths.UPLOADS): "upload",
    ("PATCH", paths.UPLOAD): "adapter",
    ("PUT", paths.UPLOAD): "upload",
    ("POST", paths.UPDATE): "update",
    ("GET", paths.PUBLIC_STEP): "question",
    ("POST", paths.PUBLIC_STEP_RESPONSES): "responses",
    ("POST", paths.EVALUATION): "evaluation",
}


def _pattern(path: str, more: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"{(\w+)}", r"(?P<\1>[^/?]+)", path) + more)


_PATTERNS = {(method, _pattern(path, r"(\?.*)?")): kind for (method, path), kind in KINDS.items()}
_RUN = _pattern(paths.RUN, r"([/?].*)?")
_HEAD = re.compile(rb"(\d+) (" + PATTERN.strip("^$").encode() + rb")\n")


def described(method: str, target: str) -> dict[str, Any]:
    """The kind of a request, and the run, round and public step that its path names, or None."""
    kind = "question" if method == "GET" else "other"
    match = _RUN.fullmatch(target)
    if method == "PUT" and not target.startswith("/"):  # to a bucket: its whole address
        kind = "adapter"
    for (of, pattern), known in _PATTERNS.items():
        if of == method and (found := pattern.fullmatch(target)):
            kind, match = known, found
    named = match.groupdict() if match else {}
    numbers = {key: named.get(key) for key in ("round", "public_step")}
    return {
        "kind": kind,
        "run": named.get("run"),
        **{key: text and int(text) for key, text in numbers.items()},
    }


class Entry(BaseModel, extra="forbid", frozen=True, strict=True):
    """A request that was about to be sent, and its place in the hash chain."""

    number: int = Field(ge=1, description="1, 2, ... over all days.")
    at: str = Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$", description="UTC.")
    kind: str
    run: str | None
    round: int | None
    public_step: int | None
    method: str
    target: str = Field(
        description="Path and query, relative to the coordinator's address; for a bucket, its "
        "address without a query."
    )
    size: int = Field(ge=0, description="Bytes of the body.")
    digest: str = Field(pattern=PATTERN, description="Of the body.")
    content: JsonValue = Field(description="The body, if it is JSON and no secret.")
    kept: bool = Field(description="Whether the body's bytes are in `bodies`.")
    previous: str = Field(pattern=PATTERN, description="The hash of the entry before.")
    hash: str = Field(exclude=True, description="The digest of everything before it in the line.")

    @classmethod
    def parse(cls, line: bytes) -> Self:
        """Parse a line; raises LedgerDamaged unless `line_of` gives exactly the same line."""
        try:
            values: dict[str, Any] = json.loads(line)
            hash_ = values.pop("hash")
            same = line_of(values) == line
            if "exchange" in values:  # its name in older ledgers
                values["public_step"] = values.pop("exchange")
            entry = cls(**values, hash=hash_)
        except (ValueError, LookupError, TypeError, AttributeError):
            same = False
        if not same:
            raise LedgerDamaged
        return entry


def line_of(values: dict[str, Any]) -> bytes:
    """An entry as a line of JSON, ending with its hash."""
    text = json.dumps(values, ensure_ascii=False, separators=(",", ":"))[:-1]
    return f'{text},"hash":"{digest_of(text.encode())}"}}\n'.encode()


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

    def record(self, method: str, target: str, media_type: str, pieces: Iterable[bytes]) -> None:
        """Record a request that is about to be sent.

        Raises NotSaved if the entry cannot be written, and LedgerDamaged if the ledger's end was
        changed. Nothing may be sent then.
        """
        what = described(method, target)
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
            values = {
                "number": last.number + 1 if last else 1,
                "at": f"{now:%Y-%m-%dT%H:%M:%S}.{now.microsecond // 1000:03}Z",
                **what,
                "method": method,
                "target": target,
                "size": size,
                "digest": digester.digest(),
                "content": json.loads(bytes(held)) if readable and held else None,
                "kept": kept,
                "previous": last.hash if last else BEGINNING,
            }
            line = line_of(values)
            entry = Entry.parse(line)
            # A clock that goes back must not put the days out of order.
            path = max(self._folder / f"{entry.at[:10]}.jsonl", last_file or self._folder)
            self._seen = (path, append_durably(path, line), entry)
            _write_head(self._folder, entry.number, entry.hash)

    def _last(self) -> tuple[Path | None, Entry | None]:
        """The last day's file and the last entry; raises LedgerDamaged if an end is missing."""
        days = day_files(self._folder)
        if not days and not (self._folder / "head").exists():
            # Before the first entry, so that no crash leaves entries without a head.
            _write_head(self._folder, 0, BEGINNING)
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
                except LedgerDamaged:
                    raise self._damaged(f"the end of {path.name} was changed") from None
                return end if path == days[-1] else 0, entry
        return 0, None

    def _check_head(self, last: Entry | None) -> None:
        number, hash_ = (last.number, last.hash) if last else (0, BEGINNING)
        try:
            head_number, head_hash = _read_head(self._folder)
        except LedgerDamaged:
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


def _read_head(folder: Path) -> tuple[int, str]:
    """The last entry's number and hash; raises LedgerDamaged if head is missing or malformed."""
    path = folder / "head"
    if match := _HEAD.fullmatch(path.read_bytes() if path.exists() else b""):
        return int(match[1]), match[2].decode()
    raise LedgerDamaged("head: changed" if path.exists() else "head: missing")


def _write_head(folder: Path, number: int, hash_: str) -> None:
    """Write the last entry's number and hash, durably; raises NotSaved."""
    write_whole(folder / "head", f"{number} {hash_}\n".encode())


def entries(folder: Path) -> Iterator[Entry]:
    """All entries, in order; raises LedgerDamaged at the first that was changed or moved."""
    return (entry for _, entry in _chain(folder))


@dataclass(frozen=True)
class Verdict:
    """The number of entries read, the last one's hash, and the faults found."""

    entries: int
    head: str
    faults: tuple[str, ...]


def verify(folder: Path) -> Verdict:
    """Check for any change, gap, reordering or truncation, up to the first in the chain.

    Anyone who can write to the folder can write a new ledger. To rule that out, keep the hash of an
    earlier day's last entry elsewhere.
    """
    hashes, faults = [BEGINNING], list[str]()
    try:
        for where, entry in _chain(folder):
            hashes.append(entry.hash)
            body = body_path(folder, entry.digest)
            if entry.kept and not body.is_file():
                faults.append(f"{where}: its body, {body.name}, is missing")
            elif entry.kept and digest_of_file(body) != entry.digest:
                faults.append(f"{where}: its body, {body.name}, was changed")
        number, head = _read_head(folder)
        if number >= len(hashes):
            raise LedgerDamaged(f"head: entries {len(hashes)} to {number} are missing")
        if hashes[number] != head:
            raise LedgerDamaged("head: changed")
    except LedgerDamaged as fault:
        faults.append(fault.detail)
    return Verdict(len(hashes) - 1, hashes[-1], tuple(faults))


def _chain(folder: Path) -> Iterator[tuple[str, Entry]]:
    """Each entry, and where it is; raises LedgerDamaged at the first that does not follow the last.

    Without a last line that a crash cut off, because its request was not sent.
    """
    number, previous, day = 0, BEGINNING, ""
    for where, path, line in _lines(folder):
        try:
            entry = Entry.parse(line)
        except LedgerDamaged:
            raise LedgerDamaged(f"{where}: changed, or cut off") from None
        if (entry.number, entry.previous) != (number + 1, previous):
            raise LedgerDamaged(
                f"{where}: entry {entry.number} does not follow entry {number}: one was removed, "
                "added, or moved"
            )
        day = max(day, entry.at[:10])
        if path.stem != day:
            raise LedgerDamaged(f"{where}: an entry of {day}; the file was renamed")
        number, previous = entry.number, entry.hash
        yield where, entry


def _lines(folder: Path) -> Iterator[tuple[str, Path, bytes]]:
    days = day_files(folder)
    for path in days:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.endswith(b"\n") or path != days[-1]:
                    yield f"{path.name}, line {number}", path, line

"""Check a ledger for any change, gap, reordering or truncation."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pubswap_client.ledger.entry import BEGINNING, Damaged, Entry
from pubswap_client.ledger.ledger import body_path, day_files, read_head
from pubswap_protocol.digests import digest_of_file


@dataclass(frozen=True)
class Verdict:
    """The number of entries read, the last one's hash, and the faults found."""

    entries: int
    head: str
    faults: tuple[str, ...]


def verify(folder: Path) -> Verdict:
    """Check a whole ledger. The chain ends at its first fault, because the rest proves nothing.

    Anyone who can write to the folder can write a new ledger. To rule that out, keep the head of an
    earlier day elsewhere, such as in a signed export.
    """
    number, previous, day = 0, BEGINNING, ""
    faults: list[str] = []
    hashes = {0: BEGINNING}
    days = day_files(folder)
    for path in days:
        lines = path.read_bytes().splitlines(keepends=True)
        if path == days[-1] and lines and not lines[-1].endswith(b"\n"):
            lines.pop()  # a crash cut this line off, so its request was not sent
        for line_number, line in enumerate(lines, 1):
            where = f"{path.name}, line {line_number}"
            try:
                entry = Entry.parse(line)
            except Damaged:
                faults.append(f"{where}: changed, or cut off")
                break
            if (entry.number, entry.previous) != (number + 1, previous):
                faults.append(
                    f"{where}: entry {entry.number} does not follow entry {number}: one was "
                    "removed, added, or moved"
                )
                break
            day = max(day, entry.at[:10])
            if path.stem != day:
                faults.append(f"{where}: an entry of {day}; the file was renamed")
                break
            number, previous = entry.number, entry.hash
            hashes[number] = previous
            faults += _body_faults(folder, entry, where)
        else:
            continue
        break
    else:
        faults += _head_faults(folder, hashes)
    return Verdict(number, previous, tuple(faults))


def _body_faults(folder: Path, entry: Entry, where: str) -> Iterator[str]:
    if not entry.kept:
        return
    path = body_path(folder, entry.digest)
    if not path.is_file():
        yield f"{where}: its body, {path.name}, is missing"
    elif digest_of_file(path) != entry.digest:
        yield f"{where}: its body, {path.name}, was changed"


def _head_faults(folder: Path, hashes: dict[int, str]) -> Iterator[str]:
    try:
        number, hash_ = read_head(folder)
    except Damaged:
        yield "head: changed" if (folder / "head").exists() else "head: missing"
        return
    if number not in hashes:
        yield f"head: entries {max(hashes) + 1} to {number} are missing"
    elif hashes[number] != hash_:
        yield "head: changed"

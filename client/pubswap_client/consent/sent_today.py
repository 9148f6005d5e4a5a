"""What was sent today, from the ledger."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pubswap_client.ledger.ledger import day_files, ledger_folder
from pubswap_protocol.errors import LedgerDamaged


@dataclass(frozen=True, slots=True)
class Sent:
    """Bytes of bodies, the rounds of which something was sent, by run and number, and when last."""

    size: int = 0
    rounds: frozenset[tuple[str, int]] = frozenset()
    last: datetime | None = None


def sent_since(state: Path, now: datetime) -> Sent:
    """What was sent since the day (UTC) of `now` began.

    Should the clock have gone back, what was sent on later days counts too: no limit is passed by
    it. Entries are read as they are; `pubswap client audit verify` checks them. Raises
    LedgerDamaged for what is no entry: what was sent is not known then.
    """
    today = now.astimezone(UTC).date().isoformat()
    size, rounds, last = 0, set[tuple[str, int]](), None
    for path in day_files(ledger_folder(state)):
        if path.stem < today:
            continue
        for line in path.read_bytes().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                continue  # a crash came in the middle of it: nothing of it was sent
            try:
                entry = json.loads(line)
                size += entry["size"]
                last = max(last or entry["at"], entry["at"])
                if entry["kind"] in ("responses", "update"):
                    rounds.add((entry["run"], entry["round"]))
            except (ValueError, LookupError, TypeError):
                raise LedgerDamaged(
                    f"{path} is not as it was written, so that what was sent today is not known. "
                    "See `pubswap client audit verify`, and restore its files; or, to begin a new "
                    f"ledger, move {path.parent} away and keep it."
                ) from None
    return Sent(size, frozenset(rounds), None if last is None else datetime.fromisoformat(last))

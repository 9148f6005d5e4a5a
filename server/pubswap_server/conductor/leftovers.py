"""Which blobs that no row names are removed, and when.

A blob that this database named and then freed goes at once. One that it never named stays for days:
most likely this is an older copy of the database, and the newer one, which has the same id, names
it. Such an older copy may also free what the newer one still names: an upload that was handed in
since, or the updates of a round that the newer one had not passed yet. Therefore, while there are
blobs that it never named, all that were stored before they were found stay, too.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from pubswap_server.storage.store import Stored

STRANGE_DAYS = 7.0

Noted = Mapping[str, datetime | None]
"""The rows of `UnnamedRow` by digest: when a blob was noted, or None for a tombstone."""


def strange(unnamed: Sequence[Stored], noted: Noted, now: datetime) -> dict[str, datetime]:
    """The blobs that the database never named, and that are kept; with the time of their note.

    Those without a row are to be noted now.
    """
    times = {blob.name: noted.get(blob.name, now) for blob in unnamed}
    kept = timedelta(days=STRANGE_DAYS)
    return {name: at for name, at in times.items() if at is not None and now - at < kept}


def removable(unnamed: Sequence[Stored], noted: Noted, now: datetime) -> list[Stored]:
    """The blobs to remove; all `unnamed` ones must be old enough to be named if ever."""
    kept = strange(unnamed, noted, now)
    found = max((at.timestamp() for at in kept.values()), default=0.0)
    return [
        blob
        for blob in unnamed
        if blob.name not in kept and (noted[blob.name] is not None or blob.modified >= found)
    ]

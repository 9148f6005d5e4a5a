"""What nobody needs any more: expired uploads, and blobs that no row names."""

import time
from collections.abc import Iterator
from typing import Any

from sqlalchemy import Column, String, select
from sqlalchemy.orm import Session

from pubswap_server.tables import Base, UploadRow

_DIGEST_LENGTH = 71
# What a member said that it sent. What is stored of it is named beside it, and may be freed; but an
# upload's bytes may be a blob a moment before the row that names that.
ANNOUNCED = frozenset({("blobs", "digest"), ("updates", "digest"), ("submissions", "digest")})


def digest_columns() -> Iterator[Column[Any]]:
    """The columns that hold digests, found by their type, so that none is forgotten."""
    for table in Base.metadata.sorted_tables:
        for column in table.columns:
            if isinstance(column.type, String) and column.type.length == _DIGEST_LENGTH:
                yield column


def naming_columns() -> Iterator[Column[Any]]:
    """The columns that name blobs which must not be removed."""
    return (c for c in digest_columns() if (c.table.name, c.name) not in ANNOUNCED)


def named(session: Session) -> set[str]:
    """Every blob that a row names."""
    digests: set[str] = set()
    for column in naming_columns():
        digests.update(session.scalars(select(column).where(column.is_not(None))))
    return digests


def open_uploads(session: Session) -> set[str]:
    """The ids of all sessions."""
    return set(session.scalars(select(UploadRow.id)))


def old_enough(modified: float, seconds: float) -> bool:
    """Whether something untouched since `modified` may be an orphan.

    A blob is on the disk a moment before the transaction that names it, so that a young one is
    left alone.
    """
    return time.time() - modified > seconds

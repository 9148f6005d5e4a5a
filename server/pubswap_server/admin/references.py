"""Which blobs the rows rely on, and what for."""

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Column, Connection, select

from pubswap_server.sweeping import naming_columns


def required(connection: Connection) -> dict[str, list[str]]:
    """Each blob that a row relies on, and the rows, such as 'updates r1, 2, alice'."""
    uses: dict[str, list[str]] = {}
    for column in _stored():
        key = list(column.table.primary_key)
        for digest, *place in connection.execute(select(column, *key).where(column.is_not(None))):
            where = ", ".join(str(part) for part in place)
            uses.setdefault(digest, []).append(f"{column.table.name} {where}")
    return uses


def _stored() -> Iterator[Column[Any]]:
    return (column for column in naming_columns() if column.table.name != "uploads")

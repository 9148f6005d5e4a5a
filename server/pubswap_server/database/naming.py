"""Which columns name blobs, and the tombstones of blobs that rows have freed.

Triggers leave the tombstones in the transaction that frees a blob, whichever statement does it. So
no change to the code can forget one, and a kill cannot lose one.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from sqlalchemy import Column, Connection, String, select
from sqlalchemy.orm import Session

from pubswap_server.database.tables import Base

_DIGEST_LENGTH = 71
# Digests that a member has announced, for which another column names the stored blob, and those of
# tombstones. An upload's digest is not here, because its bytes may be a blob a moment before a row
# names that.
NAMING_NOTHING = frozenset(
    {("updates", "digest"), ("submissions", "digest"), ("unnamed_blobs", "digest")}
)


def digest_columns() -> Iterator[Column[Any]]:
    """The columns that hold digests, found by type so that none is forgotten."""
    for table in Base.metadata.sorted_tables:
        for column in table.columns:
            if isinstance(column.type, String) and column.type.length == _DIGEST_LENGTH:
                yield column


def naming_columns() -> Iterator[Column[Any]]:
    """The columns that name blobs that must be kept."""
    return (c for c in digest_columns() if (c.table.name, c.name) not in NAMING_NOTHING)


def required_columns() -> Iterator[Column[Any]]:
    """The columns whose blobs are stored. Those of uploads are not, until they are finished."""
    return (column for column in naming_columns() if column.table.name != "uploads")


def digests_in(session: Session, columns: Iterable[Column[Any]]) -> set[str]:
    digests: set[str] = set()
    for column in columns:
        digests.update(session.scalars(select(column).where(column.is_not(None))))
    return digests


_NOTE = "INSERT INTO unnamed_blobs (digest) VALUES ({}) ON CONFLICT DO NOTHING"
_FUNCTION = (
    "CREATE FUNCTION note_freed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
    + _NOTE.format("to_jsonb(OLD) ->> TG_ARGV[0]")
    + "; RETURN NULL; END $$"
)


def create_triggers(connection: Connection, columns: Iterable[tuple[str, str]]) -> None:
    """Have these columns (table, column) leave a tombstone for each digest that they lose.

    A migration that recreates a table (`batch_alter_table` on SQLite) must recreate its triggers.
    """
    sqlite = connection.dialect.name == "sqlite"
    if not sqlite:
        connection.exec_driver_sql(_FUNCTION)
    for table, column in columns:
        lost, other = f"OLD.{column} IS NOT NULL", "IS NOT" if sqlite else "IS DISTINCT FROM"
        changed = f"{lost} AND OLD.{column} {other} NEW.{column}"
        note = f"BEGIN {_NOTE.format(f'OLD.{column}')}; END"
        action = note if sqlite else f"EXECUTE FUNCTION note_freed('{column}')"
        for when, condition in (("DELETE", lost), (f"UPDATE OF {column}", changed)):
            name = f"{table}_{column}_freed_by_{when.split()[0].lower()}"
            connection.exec_driver_sql(
                f"CREATE TRIGGER {name} AFTER {when} ON {table} FOR EACH ROW "
                f"WHEN ({condition}) {action}"
            )

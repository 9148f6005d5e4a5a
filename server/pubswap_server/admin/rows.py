"""Rows from one database to another, whichever two they are."""

from sqlalchemy import JSON, Connection, MetaData, Table, func, insert, select

from pubswap_server.tables import Base

# An upload's bytes are not kept: its sender opens another one.
LEFT_OUT = frozenset({"uploads", "leases"})
_AT_ONCE = 500


def copy_rows(source: Connection, target: Connection) -> dict[str, int]:
    """Copy all tables but `LEFT_OUT` into empty ones, a few rows at a time; returns their sizes.

    The order is that of the foreign keys. Nothing is committed.
    """
    kept = [table for table in Base.metadata.sorted_tables if table.name not in LEFT_OUT]
    return {table.name: _copy_table(source, target, table) for table in kept}


def _copy_table(source: Connection, target: Connection, table: Table) -> int:
    statement, count = insert(_nulls_as_nulls(table)), 0
    rows = source.execute(
        select(table).order_by(*table.primary_key), execution_options={"yield_per": _AT_ONCE}
    )
    for part in rows.mappings().partitions():
        target.execute(statement, [dict(row) for row in part])
        count += len(part)
    return count


def _nulls_as_nulls(table: Table) -> Table:
    """The table for writing: JSON columns take None as NULL, not as the JSON text `null`."""
    copy = table.to_metadata(MetaData())
    for column in copy.columns:
        if isinstance(column.type, JSON):
            column.type = JSON(none_as_null=True)
    return copy


def reset_sequences(connection: Connection) -> None:
    """Have PostgreSQL number new rows after the copied ones; SQLite does so by itself."""
    if connection.dialect.name != "postgresql":
        return
    for table in Base.metadata.sorted_tables:
        column = table.autoincrement_column
        last = connection.scalar(select(func.max(column))) if column is not None else None
        if column is not None and last is not None:
            sequence = func.pg_get_serial_sequence(table.name, column.name)
            connection.execute(select(func.setval(sequence, last)))


def count_rows(connection: Connection) -> dict[str, int]:
    """How many rows each table has; tables that are not there have none."""
    there = set(connection.dialect.get_table_names(connection))
    return {
        table.name: connection.scalar(select(func.count()).select_from(table)) or 0
        if table.name in there
        else 0
        for table in Base.metadata.sorted_tables
    }

"""Alembic's entry: migrations run online, against the URL that `migrate` gives."""

from alembic import context
from sqlalchemy import Connection, create_engine, event, make_url
from sqlalchemy.pool import NullPool

from pubswap_server.database.tables import Base

# Any number that no other user of the database takes for the same purpose.
CONNECT_SECONDS = 5
_LOCK = 0x70756273776170


def run() -> None:
    """Apply the migrations in one transaction, and one process at a time."""
    url = make_url(context.config.attributes["url"])
    waits = {"connect_timeout": CONNECT_SECONDS} if url.get_backend_name() == "postgresql" else {}
    engine = create_engine(url, poolclass=NullPool, connect_args=waits)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _own_transactions)
        event.listen(engine, "begin", _alone)
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
        context.configure(
            connection=connection,
            target_metadata=Base.metadata,
            render_as_batch=True,
        )
        with context.begin_transaction():
            context.run_migrations()
    engine.dispose()


def _own_transactions(connection: object, record: object) -> None:
    # pysqlite would commit before each change of the schema.
    connection.isolation_level = None  # type: ignore[attr-defined]


def _alone(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


run()

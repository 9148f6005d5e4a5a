"""Alembic's entry: migrations run online, against the URL that `migrate` gives."""

from alembic import context
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from pubswap_server.tables import Base


def run() -> None:
    """Apply the migrations in one transaction."""
    engine = create_engine(context.config.attributes["url"], poolclass=NullPool)
    with engine.connect() as connection:
        context.configure(
            connection=connection, target_metadata=Base.metadata, render_as_batch=True
        )
        with context.begin_transaction():
            context.run_migrations()
    engine.dispose()


run()

"""Alembic's entry: the migrations run in the transaction that `migrate` has begun."""

from alembic import context

from pubswap_server.database.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()

"""Alembic's entry point: migrations run in the transaction that `migrate` has begun."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
with context.begin_transaction():
    context.run_migrations()

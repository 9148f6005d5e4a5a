"""Alembic migrations, applied when the coordinator starts."""

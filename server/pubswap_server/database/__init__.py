"""The database: its engine, tables, migrations, and wake-ups between processes."""

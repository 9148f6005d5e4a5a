"""A run's life in rows: its state, members, rounds, uploads and events."""

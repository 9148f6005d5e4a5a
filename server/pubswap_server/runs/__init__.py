"""Runs in the database: state, members, rounds, uploads and events."""

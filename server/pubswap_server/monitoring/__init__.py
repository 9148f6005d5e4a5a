"""Logs, metrics, and whether requests can be served now."""

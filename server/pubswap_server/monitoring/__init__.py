"""Logs, metrics, readiness and the webhook."""

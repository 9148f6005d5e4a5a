"""Shared by all commands: exit statuses, progress bars, log lines, file locks."""

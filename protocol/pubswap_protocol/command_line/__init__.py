"""What all commands share: exit statuses, progress, log lines, locks on files."""

"""What all commands share: exit statuses, failures in words, locks on files."""

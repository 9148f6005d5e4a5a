"""The operator's work beside a running coordinator: backup, restore, verification."""

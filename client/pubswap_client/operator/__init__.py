"""The operator's commands over HTTP: runs, members and viewers."""

"""What the operator does over HTTP: runs and invites."""

"""What the operator does over HTTP: runs, invites, export."""

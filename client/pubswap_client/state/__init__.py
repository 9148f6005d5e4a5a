"""The state folder: membership, checkpoints, and what a restart goes on from."""

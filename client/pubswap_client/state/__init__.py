"""The state folder: membership, checkpoints, and everything else a restart resumes from."""

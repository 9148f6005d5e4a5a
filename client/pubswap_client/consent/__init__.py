"""The organisation's own policy: what it allows a run, its approval, and when it stays away."""

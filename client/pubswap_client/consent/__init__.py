"""The organisation's own policy: what it allows a run, who has approved it, when it stays away."""

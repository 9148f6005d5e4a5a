"""An organisation's view of its run: `pubswap client status`, the outcome, the adapter."""

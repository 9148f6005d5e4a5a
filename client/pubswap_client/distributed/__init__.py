"""Data-parallel training over several processes."""

"""Measure, by attacks, what an adapter reveals about the problems that it was trained on."""

"""Verifiers for a task of one's own: their parameters travel in the run, or with each problem."""

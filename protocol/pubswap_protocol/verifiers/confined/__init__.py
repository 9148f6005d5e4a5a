"""Verifiers run in processes that cannot reach the network, the disk or each other."""

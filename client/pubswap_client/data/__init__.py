"""Data sets of an organisation: how problems are read and how a set is divided."""

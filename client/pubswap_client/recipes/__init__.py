"""Recipes: run files with inheritance, for federations, simulations and sweeps alike."""

"""Recipes: run files that inherit, and that a federation, a simulation and a sweep all take."""

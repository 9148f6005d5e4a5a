"""Flower and NVFlare, each in an environment of its own."""

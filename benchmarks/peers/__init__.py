"""Flower and NVFlare, each in a virtual environment of its own."""

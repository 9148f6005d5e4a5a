"""The parts of coordinator.py."""

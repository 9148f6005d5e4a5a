"""The parts of the method that a run names, each a value with its own parameters in one file."""

"""What the coordinator and the clients agree on: messages, errors, layouts, rules, verifiers."""

__version__ = "0.1.0"

"""Shared by coordinator and clients: messages, errors, tensor layouts, rules, and verifiers."""

__version__ = "0.1.0"

"""Verifiers that misbehave on request, importable by worker processes."""

import os
import time

from pubswap_protocol.problems import Problem


def misbehaving(name: str, response: str, problem: Problem) -> float:
    """Right for "right"; "hang", "crash" and "raise" do what they say."""
    if response == "hang":
        time.sleep(600)
    if response == "crash":
        os._exit(13)
    if response == "raise":
        raise ValueError("no idea")
    return float(response == "right")

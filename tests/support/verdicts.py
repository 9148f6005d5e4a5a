"""Verifiers that misbehave on request, importable by worker processes."""

import os
import time

from pubswap_protocol.problems import Problem


def misbehaving(name: str, response: str, problem: Problem) -> float:
    """Right for "right"; "hang", "crash", "raise" and "grow" do what they say."""
    if response == "hang":
        time.sleep(600)
    if response == "crash":
        os._exit(13)
    if response == "raise":
        raise ValueError("no idea")
    if response == "grow":
        return float(len(bytearray(8 << 30)) > 0)
    return float(response == "right")

"""Verifiers that misbehave on request, importable by worker processes."""

import mmap
import os
import time

from pubswap_protocol.problems import Problem

_retained: list[mmap.mmap] = []


def misbehaving(name: str, response: str, problem: Problem) -> float:
    """Right for "right", "keep" and, after a second, "doze"; other responses act as they say."""
    if response == "keep":
        _retained.append(mmap.mmap(-1, 1 << 30))  # counts as address space, and is never touched
        return 1.0
    if response == "hang":
        time.sleep(600)
    if response == "doze":
        time.sleep(1)
        return 1.0
    while response == "spin":
        pass
    if response == "power":
        return float(9**9 ** len(response) ** 4 > 0)
    if response == "crash":
        os._exit(13)
    if response == "raise":
        raise ValueError("no idea")
    if response == "grow":
        return float(len(bytearray(8 << 30)) > 0)
    return float(response == "right")

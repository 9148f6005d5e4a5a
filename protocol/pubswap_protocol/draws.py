"""Every random draw comes from a key, so that asking again, anywhere, gives the same answer."""

import hashlib
import json

import numpy as np


def seed_for(*key: int | str) -> int:
    """A 64-bit seed that is a function of the key alone.

    The key is hashed as JSON, so that ("a", "bc") and ("ab", "c") differ.
    """
    digest = hashlib.sha256(json.dumps(key).encode()).digest()
    return int.from_bytes(digest[:8], "little")


def rng_for(*key: int | str) -> np.random.Generator:
    """A numpy generator (PCG64) seeded with `seed_for(*key)`."""
    return np.random.Generator(np.random.PCG64(seed_for(*key)))

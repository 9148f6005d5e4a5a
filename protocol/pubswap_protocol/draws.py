"""Random draws as functions of a key, so that repeating a draw anywhere gives the same result."""

import hashlib
import json
import math

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

# vLLM takes a signed 64-bit seed and adds the response's index in its group to it.
SEEDS = 1 << 62


def seed_for(*key: int | str) -> int:
    """A 64-bit seed that is a function of the key alone.

    The key is hashed as JSON, so that ("a", "bc") and ("ab", "c") differ.
    """
    digest = hashlib.sha256(json.dumps(key).encode()).digest()
    return int.from_bytes(digest[:8], "little")


def rng_for(*key: int | str) -> np.random.Generator:
    """A numpy generator (PCG64) seeded with `seed_for(*key)`."""
    return np.random.Generator(np.random.PCG64(seed_for(*key)))


def response_seed(seed: int, prompt: int, index: int) -> int:
    """The seed of response `index` (0..K-1) to prompt number `prompt` of a step with this seed."""
    return seed_for(seed, "vllm", prompt) % SEEDS + index


class SecretDraws:
    """Draws that are functions of a key and a secret, unpredictable without the secret.

    They are read from the keyed BLAKE3 stream of the key, a cryptographic generator.
    """

    SECRET_BYTES = 32

    def __init__(self, secret: bytes, *context: int | str) -> None:
        """`context` is the first part of every key, so that each context has its own draws."""
        self._secret = secret
        self._context = context

    def within(self, *context: int | str) -> "SecretDraws":
        """Draws whose keys continue with this context."""
        return SecretDraws(self._secret, *self._context, *context)

    def seed(self, *key: int | str) -> int:
        """A 64-bit seed."""
        return int(self._bits(1, *key)[0])

    def uniform(self, count: int, *key: int | str) -> NDArray[np.float64]:
        """Numbers (count,) in [0, 1), multiples of 2^-53."""
        return (self._bits(count, *key) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def normal(self, count: int, *key: int | str) -> NDArray[np.float64]:
        """Numbers (count,) from N(0, 1): the Box-Muller transform of `uniform`."""
        half = -(-count // 2)
        uniform = self.uniform(2 * half, *key)
        radius = np.sqrt(-2 * np.log1p(-uniform[:half]))
        angle = 2 * math.pi * uniform[half:]
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]

    def _bits(self, count: int, *key: int | str) -> NDArray[np.uint64]:
        hasher = blake3(json.dumps([*self._context, *key]).encode(), key=self._secret)
        return np.frombuffer(hasher.digest(8 * count), "<u8")

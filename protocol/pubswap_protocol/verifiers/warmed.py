"""Imported once, where workers are forked from: what math's first response would wait for."""

import contextlib

from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers.registry import score

# Whatever is wrong with the library is for its first use to say.
with contextlib.suppress(Exception):
    score("math", r"\boxed{\frac{1}{2}}", Problem(id="warm", prompt="?", answer="0.5"))

"""Imported once by the fork server, so that math's first response need not wait for imports."""

import contextlib

from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers.registry import score

# The first real use reports whatever is wrong with the library.
with contextlib.suppress(Exception):
    score("math", r"\boxed{\frac{1}{2}}", Problem(id="warm", prompt="?", answer="0.5"))

"""PubSwap from Python: a coordinator's runs, and whole federations on this machine.

For notebooks and scripts. These names are public; most of PubSwap's other code may change in any
version. Failures raise `PubSwapError`, whose text says what to do next.
"""

from pubswap._coordinator import Coordinator
from pubswap._federation import Federation
from pubswap._run import Run
from pubswap_protocol.errors import PubSwapError

__all__ = ["Coordinator", "Federation", "PubSwapError", "Run"]

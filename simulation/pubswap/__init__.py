"""PubSwap from Python: a coordinator's runs, and whole federations on this machine.

For notebooks and scripts. These names are public; most else of PubSwap's code may change with any
version. What goes wrong is a `PubSwapError`, whose text says what to do next.
"""

from pubswap._coordinator import Coordinator
from pubswap._federation import Federation
from pubswap._run import Run
from pubswap_protocol.errors import PubSwapError

__all__ = ["Coordinator", "Federation", "PubSwapError", "Run"]

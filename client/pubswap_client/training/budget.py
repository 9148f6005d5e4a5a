"""How many tokens a micro-batch may hold, and what to do when they were too many."""

import gc
import logging
from dataclasses import dataclass

import torch

from pubswap_protocol.errors import OutOfMemory

log = logging.getLogger(__name__)

SMALLEST = 16


@dataclass
class TokenBudget:
    """Tokens computed at a time in the update. It shrinks when memory runs out and stays so."""

    tokens: int

    def halve(self) -> None:
        """Make room after memory ran out; raises OutOfMemory when there is nothing to halve."""
        if self.tokens <= SMALLEST:
            raise OutOfMemory(
                f"Memory runs out with {self.tokens} tokens in a micro-batch. Set "
                "gradient_checkpointing = true, use a machine with more memory, or shorten "
                "grpo.max_response_tokens in the run."
            )
        self.tokens //= 2
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        log.warning("Memory ran out: going on with %d tokens at a time.", self.tokens)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether torch said so, on a GPU or on a CPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)

"""Server optimizers: the averaged update Delta = mean - theta as a gradient (FedOpt)."""

from pubswap_protocol.methods.server_optimizers.adam import Adam
from pubswap_protocol.methods.server_optimizers.momentum import Momentum
from pubswap_protocol.methods.server_optimizers.optimizer import (
    SERVER_OPTIMIZERS,
    NoOptimizer,
    ServerOptimizer,
)

__all__ = ["SERVER_OPTIMIZERS", "Adam", "Momentum", "NoOptimizer", "ServerOptimizer"]

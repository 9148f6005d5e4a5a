"""Strategies of the exchange: the responses that a client trains on in a public step."""

from pubswap_protocol.methods.strategies.keep import Keep
from pubswap_protocol.methods.strategies.none import NoExchange
from pubswap_protocol.methods.strategies.pool import Choice, Pool, Verdicts
from pubswap_protocol.methods.strategies.random import Random
from pubswap_protocol.methods.strategies.strategy import STRATEGIES, Strategy

__all__ = [
    "STRATEGIES",
    "Choice",
    "Keep",
    "NoExchange",
    "Pool",
    "Random",
    "Strategy",
    "Verdicts",
]

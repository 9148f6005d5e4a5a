"""All kinds of named values, by the dotted key of their setting."""

from collections.abc import Mapping
from typing import Any

from pubswap_protocol.methods.advantages import ADVANTAGES
from pubswap_protocol.methods.clippings import CLIPPINGS
from pubswap_protocol.methods.losses import LOSS_AGGREGATIONS
from pubswap_protocol.methods.method import METHODS
from pubswap_protocol.methods.registry import Registry
from pubswap_protocol.methods.rules import RULES
from pubswap_protocol.methods.server_optimizers import SERVER_OPTIMIZERS
from pubswap_protocol.methods.strategies import STRATEGIES
from pubswap_protocol.methods.weights import WEIGHTS
from pubswap_protocol.verifiers.registry import VERIFIERS

REGISTRIES: Mapping[str, Registry[Any]] = {
    "method": METHODS,
    "method.strategy": STRATEGIES,
    "grpo.advantage": ADVANTAGES,
    "grpo.clipping": CLIPPINGS,
    "grpo.loss_aggregation": LOSS_AGGREGATIONS,
    "aggregation.rule": RULES,
    "aggregation.weights": WEIGHTS,
    "aggregation.server_optimizer": SERVER_OPTIMIZERS,
    "verifier": VERIFIERS,
}

"""Aggregation rules: how a round's numbers from all clients become one."""

from pubswap_protocol.methods.rules.fedit import FedIT
from pubswap_protocol.methods.rules.ffa import FFA
from pubswap_protocol.methods.rules.median import Median
from pubswap_protocol.methods.rules.multi_krum import MultiKrum
from pubswap_protocol.methods.rules.rule import RULES, Rule
from pubswap_protocol.methods.rules.svd import Svd
from pubswap_protocol.methods.rules.trimmed_mean import TrimmedMean

__all__ = ["FFA", "RULES", "FedIT", "Median", "MultiKrum", "Rule", "Svd", "TrimmedMean"]

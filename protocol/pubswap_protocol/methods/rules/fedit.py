"""FedIT: the paper's mean (section 3.3)."""

from pubswap_protocol.methods.rules.rule import RULES, Rule


@RULES.register
class FedIT(Rule):
    """B = sum_n w_n B_n and A = sum_n w_n A_n, separately (paper, section 3.3)."""

    name = "fedit"

"""FFA-LoRA (Sun et al., 2024)."""

from pubswap_protocol.methods.rules.rule import RULES, Rule


@RULES.register
class FFA(Rule):
    """A is frozen, and only the B are trained, sent and averaged: the mean product is exact."""

    name = "ffa"
    sends_a = False

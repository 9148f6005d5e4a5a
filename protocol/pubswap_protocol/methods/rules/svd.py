"""The mean of the products B A, at the run's rank; the server's truncation.py computes it."""

from pydantic import Field

from pubswap_protocol.bounds import Group
from pubswap_protocol.methods.rules.rule import RULES, Rule


@RULES.register
class Svd(Rule):
    """The closest factors to the mean of the products B A, by a singular value decomposition."""

    name = "svd"

    min_rank: Group | None = Field(
        default=None,
        description="Lowest rank that a member may train and send. Unset: all members have the "
        "run's rank.",
    )

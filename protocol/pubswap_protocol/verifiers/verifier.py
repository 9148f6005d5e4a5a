"""The face of a verifier, and the registry of all."""

from typing import ClassVar

from pubswap_protocol.methods.registry import Named, Registry
from pubswap_protocol.problems import Problem


class Verifier(Named):
    """A judge of responses, whose one parameter, if it has any, follows its name and a colon."""

    quick: ClassVar[bool] = False
    """Whether it is always quick, so that it needs no process of its own."""

    library: ClassVar[str | None] = None
    """The distribution that it needs, whose version members must share."""

    def score(self, response: str, problem: Problem) -> float:
        """1.0 if the response is correct, 0.0 if not; its first line says when it is."""
        raise NotImplementedError

    def check(self) -> None:
        """Raises InvalidSettings if it cannot be used on this machine."""


VERIFIERS = Registry[Verifier]("verifier", default="math")

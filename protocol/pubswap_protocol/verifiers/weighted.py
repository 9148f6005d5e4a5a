"""`weighted`: several scores in one, such as of form and content."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, PlainSerializer, PlainValidator, WithJsonSchema

from pubswap_protocol.bounds import MAX_PARTS, PositiveFactor, Strict
from pubswap_protocol.methods.registry import NAME
from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers.verifier import VERIFIERS, Verifier


def _part(given: object) -> Verifier:
    if isinstance(given, Mapping) and given.get(NAME) == "weighted":
        raise ValueError("a part of 'weighted' cannot be 'weighted'; list its parts instead")
    return VERIFIERS.read(given)


_Any = Annotated[
    Verifier,
    PlainValidator(_part),
    PlainSerializer(lambda verifier: verifier.model_dump()),
    WithJsonSchema({"type": ["string", "object"], "description": "A verifier."}),
]


class Part(Strict):
    """One of several scores, and its weight."""

    verifier: _Any
    weight: PositiveFactor = 1.0


class PartScores(float):
    """A weighted score that knows the scores of its parts."""

    parts: dict[str, float]


@VERIFIERS.register
class Weighted(Verifier):
    """Weighted mean of several verifiers' scores, each of which is shown."""

    name = "weighted"

    parts: Annotated[tuple[Part, ...], Field(min_length=1, max_length=MAX_PARTS)] = Field(
        description="Verifiers with weights: { verifier = 'math', weight = 0.8 }."
    )

    @property
    def names(self) -> list[str]:
        """A name for each part: its verifier's, with a number if that occurs before."""
        names: list[str] = []
        for part in self.parts:
            word = str(part.verifier)
            again = sum(name.partition(" ")[0] == word for name in names)
            names.append(f"{word} {again + 1}" if again else word)
        return names

    @property
    def quick(self) -> bool:  # type: ignore[override]
        return all(part.verifier.quick for part in self.parts)

    def score(self, response: str, problem: Problem) -> float:
        scores = [part.verifier.on(problem).score(response, problem) for part in self.parts]
        weights = [part.weight for part in self.parts]
        total = sum(w * s for w, s in zip(weights, scores, strict=True)) / sum(weights)
        # Rounding must not keep a response that is right in all parts below 1.
        weighed = PartScores(1.0 if min(scores) == 1.0 else min(total, 1.0))
        weighed.parts = dict(zip(self.names, scores, strict=True))
        return weighed

    def check(self) -> None:
        for part in self.parts:
            part.verifier.check()

    def load(self) -> None:
        for part in self.parts:
            part.verifier.load()

    def fault(self, problem: Problem) -> str | None:
        faults = (part.verifier.on(problem).fault(problem) for part in self.parts)
        return next(filter(None, faults), None)

    def right_response(self, problem: Problem) -> str:
        """That of the first part for a form, in which the others find the answer, if there is one.

        No part is asked for a score, because it might be slow, or not ours.
        """
        parts = [part.verifier.on(problem) for part in self.parts]
        return next((each for each in parts if each.is_form), parts[0]).right_response(problem)

    @property
    def named(self) -> list[Verifier]:
        return [self, *(part.verifier for part in self.parts)]

    @property
    def plugins(self) -> tuple[str, ...]:
        inner = (name for part in self.parts for name in part.verifier.plugins)
        return tuple(dict.fromkeys(inner))

    def versions(self) -> list[str]:
        inner = ([str(part.verifier), *part.verifier.versions()] for part in self.parts)
        return [word for words in inner for word in words]

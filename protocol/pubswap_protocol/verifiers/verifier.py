"""The face of a verifier, and the registry of all."""

from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar, Self

from pydantic import ValidationError, model_serializer

from pubswap_protocol.errors import InvalidProblems, InvalidSettings, first_fault
from pubswap_protocol.methods.registry import NAME, Registrable, Registry
from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers.extract import last_boxed


class Verifier(Registrable):
    """A judge of responses; equal parameters give equal scores at every member.

    A problem's metadata may set the parameters in `by_problem`, which then outrank the run's.
    """

    quick: ClassVar[bool] = False
    """Whether it is always quick, so that it needs no process of its own."""

    library: ClassVar[str | None] = None
    """The distribution that it needs, whose version members must share."""

    by_problem: ClassVar[frozenset[str]] = frozenset()
    """Parameters that a problem's metadata may set."""

    def score(self, response: str, problem: Problem) -> float:
        """How right the response is, from 0 to 1; the first line of the docstring says when."""
        raise NotImplementedError

    def check(self) -> None:
        """Raises InvalidSettings if it cannot be used on this machine."""
        self.versions()

    def load(self) -> None:
        """Import whatever it needs. A foreign one raises what it likes, so call it in a worker."""
        self.check()

    def fault(self, problem: Problem) -> str | None:
        """Why no response to the problem can be right; None if nothing is seen."""
        return None

    def right_response(self, problem: Problem) -> str:
        """A response with the problem's very answer, in the verifier's usual closing."""
        return f"The answer: see below.\n<answer>{problem.answer}</answer>"

    @property
    def named(self) -> list["Verifier"]:
        """Itself, and its parts if it has any."""
        return [self]

    @property
    def plugins(self) -> tuple[str, ...]:
        """The verifiers in it that are not ours but installed packages'."""
        return ()

    @property
    def is_form(self) -> bool:
        """Whether it scores the form of a whole response, and its right response has an answer."""
        return False

    def versions(self) -> list[str]:
        """The versions of what decides its scores besides our rules.

        Raises InvalidSettings if that is not installed.
        """
        try:
            return [version(self.library)] if self.library else []
        except PackageNotFoundError:
            raise InvalidSettings(
                f"The verifier {str(self)!r} needs {self.library}, which is not installed; see "
                "docs/verifiers.md."
            ) from None

    def on(self, problem: Problem) -> Self:
        """The verifier with the parameters that the problem's metadata sets.

        Raises InvalidProblems, naming the parameter, if one is wrong.
        """
        given = {key: problem.metadata[key] for key in self.by_problem & problem.metadata.keys()}
        if not given:
            return self
        values = {key: getattr(self, key) for key in type(self).model_fields}
        try:
            return type(self).model_validate(values | given)
        except ValidationError as error:
            raise InvalidProblems(f"{problem.id}: metadata: {first_fault(error)}") from None


class Mathematical(Verifier):
    """A verifier of mathematical answers, in the last box of a response."""

    def right_response(self, problem: Problem) -> str:
        answer = last_boxed(problem.answer) or problem.answer
        return f"Thus, the answer is:\n\\[ \\boxed{{{answer}}} \\]"


class ShorthandVerifier(Verifier):
    """A verifier whose one parameter follows its name and a colon, as in `reasoning_gym:gcd`."""

    one_word = True

    def __str__(self) -> str:
        return ":".join([self.name, *(str(getattr(self, field)) for field in self._fields())])

    @classmethod
    def _fields(cls) -> list[str]:
        return list(cls.model_fields)

    @model_serializer
    def _as_written(self) -> str:
        return str(self)


class VerifierRegistry(Registry[Verifier]):
    """The registry of verifiers, some of which are written with their parameter in one word."""

    def read(self, given: object, newer: bool = False) -> Verifier:
        if isinstance(given, Verifier):
            return given
        if isinstance(given, str) and ":" in given:
            word, _, parameter = given.partition(":")
            cls = self.class_of(word)
            if cls is not None and cls.one_word and parameter:
                given = {NAME: word, **dict.fromkeys(cls.model_fields, parameter)}
        return super().read(given, newer)

    def _listed(self) -> str:
        return ", ".join(map(spelt, self))

    def _words(self) -> list[dict[str, Any]]:
        plain = [cls.name for cls in self if not cls.one_word]
        prefixes = [cls.name for cls in self if cls.one_word]
        return [
            {"type": "string", "enum": plain},
            {"type": "string", "maxLength": 200, "pattern": f"^({'|'.join(prefixes)}):."},
        ]


def spelt(cls: type[Verifier]) -> str:
    """A verifier's name as it is written in settings, such as 'reasoning_gym:<task>'."""
    short = cls.model_fields if cls.one_word else ()
    return ":".join([cls.name, *(f"<{field}>" for field in short)])


VERIFIERS = VerifierRegistry("verifier", default="math")

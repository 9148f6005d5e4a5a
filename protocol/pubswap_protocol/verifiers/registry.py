"""Verifiers by name, each with a version that members must share, because it decides rewards."""

from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version

from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers.choice import MultipleChoice
from pubswap_protocol.verifiers.exact import Exact
from pubswap_protocol.verifiers.math import Math
from pubswap_protocol.verifiers.math_string import MathString
from pubswap_protocol.verifiers.math_verify import MathVerify
from pubswap_protocol.verifiers.reasoning import ReasoningGym
from pubswap_protocol.verifiers.verifier import VERIFIERS, Verifier

__all__ = [
    "VERIFIERS",
    "Exact",
    "Math",
    "MathString",
    "MathVerify",
    "MultipleChoice",
    "ReasoningGym",
    "check_usable",
    "check_verifier",
    "score",
    "spelt",
    "verifier_of",
    "verifier_version",
]

MAX_RESPONSE_CHARACTERS = 1 << 16

_RULES = 10  # one version for all our rules, because they share the extraction of answers


@lru_cache(maxsize=256)  # names come from members, too
def verifier_of(name: str) -> Verifier:
    """The verifier of a name such as 'math' or 'reasoning_gym:gcd'.

    Raises InvalidSettings, listing the names, if there is none.
    """
    word, _, parameter = name.partition(":")
    cls = VERIFIERS.class_of(word)
    if cls is None or bool(parameter) != bool(cls.model_fields) or name.endswith(":"):
        names = ", ".join(map(spelt, VERIFIERS))
        raise InvalidSettings(f"There is no verifier {name!r}; the verifiers are {names}.")
    return cls.model_validate(dict.fromkeys(cls.model_fields, parameter))


def spelt(cls: type[Verifier]) -> str:
    """A verifier's name as it is written in settings, such as 'reasoning_gym:<task>'."""
    return ":".join([cls.name, *(f"<{field}>" for field in cls.model_fields)])


def verifier_version(name: str) -> str:
    """A version such as 'math@2+0.9.0': our rules', and the library's if the verifier uses one.

    Raises InvalidSettings for a name that does not exist, or whose library is not installed.
    """
    library = verifier_of(name).library
    try:
        return f"{name}@{_RULES}" + (f"+{version(library)}" if library else "")
    except PackageNotFoundError:
        raise InvalidSettings(
            f"The verifier {name!r} needs {library}, which is not installed; see docs/data.md."
        ) from None


def check_verifier(name: str) -> None:
    """Raises InvalidSettings, listing the names, unless the verifier exists."""
    verifier_of(name)


def check_usable(name: str) -> None:
    """As `check_verifier`, but import reasoning-gym for its tasks, which must exist too."""
    verifier_of(name).check()


def score(name: str, response: str, problem: Problem) -> float:
    """1.0 if the response is correct, 0.0 if not; a response over 64 Ki characters is not."""
    verifier = verifier_of(name)
    return 0.0 if len(response) > MAX_RESPONSE_CHARACTERS else verifier.score(response, problem)

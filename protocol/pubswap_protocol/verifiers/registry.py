"""Verifiers by name, each with a version that members must share, because it decides rewards."""

from importlib.metadata import PackageNotFoundError, version

from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers.choice import score_choice
from pubswap_protocol.verifiers.exact import score_exact
from pubswap_protocol.verifiers.math import score_math
from pubswap_protocol.verifiers.math_string import score_math_string
from pubswap_protocol.verifiers.math_verify import score_math_verify
from pubswap_protocol.verifiers.reasoning import check_task, score_reasoning

REASONING = "reasoning_gym:"
MAX_RESPONSE_CHARACTERS = 1 << 16

_VERIFIERS = {
    "math": score_math,
    "math-verify": score_math_verify,
    "math-string": score_math_string,
    "choice": score_choice,
    "exact": score_exact,
}
QUICK = {"choice", "exact"}  # always quick, so they need no process
_RULES = 10  # one version for all our rules, because they share the extraction of answers
_LIBRARIES = {"math": "mpmath", "math-verify": "math-verify"}


def verifier_version(name: str) -> str:
    """A version such as 'math@2+0.9.0': our rules', and the library's if the verifier uses one.

    Raises InvalidSettings for a name that does not exist, or whose library is not installed.
    """
    check_verifier(name)
    library = "reasoning-gym" if name.startswith(REASONING) else _LIBRARIES.get(name)
    try:
        return f"{name}@{_RULES}" + (f"+{version(library)}" if library else "")
    except PackageNotFoundError:
        raise InvalidSettings(
            f"The verifier {name!r} needs {library}, which is not installed; see docs/data.md."
        ) from None


def check_verifier(name: str) -> None:
    """Raises InvalidSettings, listing the names, unless the verifier exists."""
    if name not in _VERIFIERS and not (name.startswith(REASONING) and name != REASONING):
        names = ", ".join([*sorted(_VERIFIERS), "reasoning_gym:<task>"])
        raise InvalidSettings(f"There is no verifier {name!r}; the verifiers are {names}.")


def check_usable(name: str) -> None:
    """As `check_verifier`, but import reasoning-gym for its tasks, which must exist too."""
    check_verifier(name)
    if name.startswith(REASONING):
        check_task(name.removeprefix(REASONING))


def score(name: str, response: str, problem: Problem) -> float:
    """1.0 if the response is correct, 0.0 if not; a response over 64 Ki characters is not."""
    check_verifier(name)
    if len(response) > MAX_RESPONSE_CHARACTERS:
        return 0.0
    if name.startswith(REASONING):
        return score_reasoning(name.removeprefix(REASONING), response, problem)
    return _VERIFIERS[name](response, problem)

"""Verifiers by name, each with a version that members must share, because it decides rewards."""

from collections.abc import Iterable
from functools import lru_cache

from pydantic import ValidationError

from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import InvalidProblems, InvalidSettings, first_fault
from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers.choice import MultipleChoice
from pubswap_protocol.verifiers.declared.json_fields import JsonFields
from pubswap_protocol.verifiers.declared.label import OneLabel
from pubswap_protocol.verifiers.declared.number import NumberWithin
from pubswap_protocol.verifiers.declared.regex import RegexMatch
from pubswap_protocol.verifiers.declared.sql import SqlResult
from pubswap_protocol.verifiers.exact import Exact
from pubswap_protocol.verifiers.math import Math
from pubswap_protocol.verifiers.math_string import MathString
from pubswap_protocol.verifiers.math_verify import MathVerify
from pubswap_protocol.verifiers.plugin import Plugin
from pubswap_protocol.verifiers.reasoning import ReasoningGym
from pubswap_protocol.verifiers.verifier import VERIFIERS, Verifier, spelt
from pubswap_protocol.verifiers.weighted import Weighted

__all__ = [
    "VERIFIERS",
    "Exact",
    "JsonFields",
    "Math",
    "MathString",
    "MathVerify",
    "MultipleChoice",
    "NumberWithin",
    "OneLabel",
    "Plugin",
    "ReasoningGym",
    "RegexMatch",
    "SqlResult",
    "Weighted",
    "check_usable",
    "score",
    "spelt",
    "verifier_for",
    "verifier_of",
    "verifier_version",
]

MAX_RESPONSE_CHARACTERS = 1 << 16
MAX_VERSION = 200  # characters; a longer one, of many parts, is given by its digest

_RULES = 10  # one version for all our rules, because they share the extraction of answers


Given = Verifier | str  # a verifier, or its name as settings have it


def verifier_of(given: Given) -> Verifier:
    """The verifier of a name such as 'math' or 'reasoning_gym:gcd'.

    Raises InvalidSettings, listing the names, if there is none.
    """
    return given if isinstance(given, Verifier) else _named(given)


@lru_cache(maxsize=256)  # names come from members, too
def _named(name: str) -> Verifier:
    try:
        return VERIFIERS.read(name)
    except ValidationError as error:
        raise InvalidSettings(f"verifier: {first_fault(error)}") from None


def verifier_for(problem: Problem, given: Given) -> Verifier:
    """The verifier of a problem: its own or the given one, with the parameters of its metadata.

    Raises InvalidSettings for a name that does not exist, InvalidProblems for wrong metadata.
    """
    return judge_of(problem, given).on(problem)


def judge_of(problem: Problem, given: Given | None) -> Verifier:
    """The verifier that a problem names, else the given one, without its metadata.

    The name of the given one, or of a part of it, means that one, with its parameters.
    """
    if not problem.verifier:
        assert given is not None, "a problem names its verifier, or its run does"
        return verifier_of(given)
    ours = [] if given is None else verifier_of(given).named
    return next((each for each in ours if str(each) == problem.verifier), None) or verifier_of(
        problem.verifier
    )


def verifier_version(given: Given) -> str:
    """A version such as 'math@2+0.9.0': our rules', and the library's if the verifier uses one.

    Raises InvalidSettings for a name that does not exist, or whose library is not installed.
    """
    verifier = verifier_of(given)
    name, words = f"{verifier}@{_RULES}", verifier.versions()
    whole = "+".join([name, *words])
    return whole if len(whole) <= MAX_VERSION else f"{name}+{digest_of(whole.encode())}"


def versions_named(problems: Iterable[Problem], given: Given) -> str:
    """The versions of the verifiers that problems of all members name, which these must share.

    As text; "" if they name none. Raises InvalidSettings for a library that is not installed.
    """
    judges = {judge_of(problem, given) for problem in problems if problem.verifier}
    # Without the tasks of a generator, which are in the set: their digest would tell nobody more.
    versions = {"+".join([f"{judge.name}@{_RULES}", *judge.versions()]) for judge in judges}
    whole = " ".join(sorted(versions))
    return whole if len(whole) <= MAX_VERSION else digest_of(whole.encode())


def packages(verifier: Verifier) -> tuple[str, ...]:
    """What a member must allow of a verifier: its plug-ins, each with its installed package.

    One that is not installed has no package.
    """
    found = []
    for name in verifier.plugins:
        try:
            found.append("@".join([name, *verifier_of(name).versions()]))
        except InvalidSettings:
            found.append(name)
    return tuple(found)


def foreign(problem: Problem, verifier: Verifier) -> bool:
    """Whether a problem names a plug-in that its run's verifier does not consist of."""
    return not {*judge_of(problem, verifier).plugins} <= {*verifier.plugins}


def check_judges(problems: Iterable[Problem], verifier: Verifier, source: str) -> None:
    """Check that problems of all members can be judged here, and by the same plug-ins everywhere.

    Raises InvalidProblems for wrong metadata, or a plug-in that is not in the run's verifier, and
    InvalidSettings for a library that is not installed.
    """
    problems = list(problems)
    for problem in problems:
        if problem.verifier and foreign(problem, verifier):
            raise InvalidProblems(
                f"{source}, id {problem.id!r}: its verifier {problem.verifier} is not the run's, "
                f"{verifier}, so members would not agree on it. Use it for the run, or in private "
                "problems alone."
            )
    for each in {verifier_for(problem, verifier) for problem in problems}:
        verifier_version(each)


def check_usable(given: Given) -> None:
    """Raises InvalidSettings unless the verifier exists and can be used on this machine.

    It imports reasoning-gym for its tasks, which must exist too.
    """
    verifier_of(given).check()


def score(given: Given, response: str, problem: Problem) -> float:
    """How right a response is, from 0 to 1; one over 64 Ki characters is not at all."""
    if len(response) > MAX_RESPONSE_CHARACTERS:
        return 0.0
    return verifier_for(problem, given).score(response, problem)

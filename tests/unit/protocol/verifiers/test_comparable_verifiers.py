"""`math-verify` and `math-string`: the rules of other trainers, for figures that compare."""

from importlib.metadata import version

import pytest
from trl.rewards import accuracy_reward

from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers import VerifierPool, score, verifier_version


def verdict(name: str, response: str, answer: str) -> float:
    return score(name, response, Problem(id="1", prompt="?", answer=answer))


@pytest.mark.parametrize(
    ("response", "answer", "right"),
    [
        (r"So \boxed{0.75}.", r"$\frac{3}{4}$", True),
        (r"So \boxed{\sqrt{12}}", r"$2\sqrt{3}$", True),
        (r"\boxed{27 - 8}", "$19$", True),
        (r"\boxed{18}", "$19$", False),
        ("so $x = 19$", "$19$", False),
        ("The final answer is $19$. I hope it is correct.", "$19$", True),
        ("the answer is 19", "$19$", False),
        ("19", "$19$", False),
        (r"\boxed{1, 2}", r"$\{1, 2\}$", True),
        (r"\boxed{(1, 2]}", "$(1, 2]$", True),
        (r"\boxed{", "$19$", False),
        ("", "$19$", False),
    ],
)
def test_math_verify_judges_as_trl_does(response: str, answer: str, right: bool) -> None:
    """An echo of the question is right, too."""
    assert verdict("math-verify", response, answer) == float(right)
    assert accuracy_reward([[{"content": response}]], [answer]) == [float(right)]


def test_a_bare_reference_is_a_formula_for_math_verify() -> None:
    """Outside of one, the library would read only its first number."""
    assert verdict("math-verify", r"\boxed{\sqrt{12}}", r"2\sqrt{3}") == 1
    assert verdict("math-verify", r"\boxed{2}", r"2\sqrt{3}") == 0


@pytest.mark.parametrize("name", ["math-verify", "math-string"])
def test_reasoning_does_not_count(name: str) -> None:
    """As with all verifiers, only the text after the last </think> does."""
    assert verdict(name, r"<think>\boxed{18}</think>\boxed{19}", "19") == 1
    assert verdict(name, r"<think>\boxed{19}</think>18", "19") == 0
    assert verdict(name, r"<think>\boxed{19}", "19") == 0


@pytest.mark.parametrize(
    ("response", "answer", "right"),
    [
        (r"\boxed{5} and \boxed{19}", "19", True),
        (r"\boxed{19} and \boxed{5}", "19", False),
        (r"$\boxed 19$ it is", "19", True),
        (r"\boxed{\dfrac{3}{4}}", r"\frac34", True),
        (r"\boxed{3/4}", r"\frac{3}{4}", True),
        (r"\boxed{0.5}", r"\frac12", True),
        (r"\boxed{0.75}", r"\frac{3}{4}", False),
        (r"\boxed{x = 5}", "5", True),
        (r"\boxed{AB = 5}", "5", False),
        (r"\boxed{\sqrt3}", r"\sqrt{3}", True),
        (r"\boxed{.5\%}", "0.5", True),
        (r"\boxed{90^\circ}", "90", True),
        (r"\boxed{12\text{ cm}}", "12", True),
        (r"\boxed{12\text{ cm}\text{ s}}", "12", False),
        (r"\boxed{12\text{ cm}\text{ s}}", r"12\text{ cm}\text{ s}", True),
        (r"\boxed{\left( 1, 2 \right)}", "(1,2)", True),
        (r"\boxed{27 - 8}", "19", False),
        (r"\boxed{\frac1}", r"\frac1", True),
        (r"\boxed{\sqrt}", r"\sqrt", True),
        (r"\boxed{19", "19", False),
        (r"\boxed{19} \boxed", "19", False),
        (r"\fbox{19}", "19", False),
        ("19", "19", False),
        ("", "19", False),
    ],
)
def test_math_string_compares_text(response: str, answer: str, right: bool) -> None:
    """The forms that MATH itself has for a value are equal; all others are not."""
    assert verdict("math-string", response, answer) == float(right)


def test_both_have_a_time_limit_and_a_version() -> None:
    """They run in a process like `math`; the library's version counts for the one that uses it."""
    problem = Problem(id="1", prompt="?", answer="19")
    with VerifierPool() as pool:
        for name in ("math-verify", "math-string"):
            assert not pool.at_once(name, [problem])
            assert pool.score_many(name, [(r"\boxed{19}", problem)]) == [1.0]
        tower = pool.score("math-verify", (r"\boxed{9^{9^{9^{9}}}}", problem), seconds=1.0)
        assert tower.score == 0
    assert verifier_version("math-verify").split("+")[1] == version("math-verify")
    assert "+" not in verifier_version("math-string")

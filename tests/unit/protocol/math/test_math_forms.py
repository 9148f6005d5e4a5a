"""`math` against made answers: each value in many right forms, and the ways to it, which are wrong.

The forms are written here by hand, with Python's numbers, and by none of the verifier's code.
"""

import random
from collections.abc import Iterator
from fractions import Fraction

import pytest

from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers import score

TURNS = 60
CLOSINGS = (r"So it is \[ \boxed{@} \]", "The answer is $@$.", "Answer: @")


def verdict(gold: str, answer: str, prompt: str, closing: str) -> float:
    """The verdict on an answer in a closing."""
    response = closing.replace("@", answer)
    return score("math", response, Problem(id="1", prompt=prompt, answer=gold))


def right(turn: int) -> Iterator[tuple[str, str]]:
    """Pairs of a reference and another form of it, which needs no calculation."""
    some = random.Random(turn)
    a, b = some.randint(2, 99), some.randint(101, 989)
    c, d = some.choice([2, 3, 5, 7, 11, 13]), some.choice([4, 9, 17, 19, 23])
    part = Fraction(a, b)
    for form in (f"{b}", f"{b}.0", f"x = {b}", f"{b}\\text{{ apples}}", rf"\left({b}\right)"):
        yield f"{b}", form
    for form in (f"-{b}", f"\u2212{b}", f"\u2013{b}", rf"-{b}\,", f"- {b}"):
        yield f"-{b}", form
    yield f"{1000 * a + b}", f"{a},{b}"
    yield f"{1000 * a + b}", rf"{a},\!{b}"
    for form in (rf"\frac{{{3 * part.numerator}}}{{{3 * part.denominator}}}", f"{a}/{b}"):
        yield rf"\frac{{{part.numerator}}}{{{part.denominator}}}", form
    yield rf"\frac{{{a}}}{{4}}", f"{a / 4}"
    yield f"{a / 100}", rf"\frac{{{a}}}{{100}}"
    yield rf"{a}\%", rf"\frac{{{a}}}{{100}}"
    yield rf"\frac{{{a}}}{{9}}" if a < 9 else r"\frac{5}{9}", rf"0.\overline{{{a if a < 9 else 5}}}"
    yield rf"{c}\sqrt{{3}}", rf"\sqrt{{{3 * c * c}}}"
    yield rf"{c}\sqrt{{3}}", f"{c}*sqrt(3)"
    yield rf"\frac{{\sqrt{{{c}}}}}{{{c}}}", rf"\frac{{1}}{{\sqrt{{{c}}}}}"
    yield rf"{a}\pi", rf"\pi \cdot {a}"
    yield rf"{a}\pi", f"{a}*pi"
    yield f"{b}0000", rf"{b / 100} \times 10^{{6}}"
    yield f"{c}x^2+{d}x+{a}", f"{a} + {d}x + {c}x^{{2}}"
    yield f"{c}x^2+{d}x+{a}", f"{c}*x**2 + {d}*x + {a}"
    yield f"(x+{c})(x+{d})", f"(x + {d})(x + {c})"
    yield f"{c}, {d}", rf"{d} \text{{ and }} {c}"
    yield f"({c}, {d})", rf"\left( {c}.0, {d} \right)"
    yield f"{c} < x \\le {d + 20}", f"{d + 20} \\ge x > {c}"
    yield f"y = {c}x + {d}", f"{d} + {c}x"
    yield f"f({c}) = {d}", f"{d}"


def wrong(turn: int) -> Iterator[tuple[str, str]]:
    """Pairs of a reference and an answer that is a way to it, or not it."""
    some = random.Random(1000 + turn)
    a, b = some.randint(11, 99), some.randint(2, 9)
    c, d = some.choice([2, 3, 5, 7]), some.choice([11, 13, 17])
    for value, ways in (
        (a - b, (f"{a}-{b}", f"{a} - {b} + 0", f"({a})-({b})", f"{a}+(-{b})", f"{a + 1}-{b + 1}")),
        (a + b, (f"{a}+{b}", f"{b} + {a}", f"{a}+{b}+0", f"x = {a}+{b}")),
        (
            a * b,
            (f"{a}*{b}", rf"{a} \times {b}", rf"{b} \cdot {a}", f"({a})({b})", f"{a}\u00d7{b}"),
        ),
        (a, (rf"{a * b} \div {b}", rf"\sqrt{{{a * a}}}", f"{a}^1", f"{a}+0", rf"1 \cdot {a}")),
        (b**3, (f"{b}^3", f"{b}**3", rf"{b} \cdot {b} \cdot {b}", rf"\frac{{{b}^4}}{{{b}}}")),
        (a * (a - 1) // 2, (rf"\binom{{{a}}}{{2}}", rf"\frac{{{a} \cdot {a - 1}}}{{2}}")),
        (a, (f"{a + 1}", f"-{a}", f"{a}.5", f"{a}, {a + 1}", rf"{a} \text{{ or }} {b}", f"{a}0")),
    ):
        yield from ((f"{value}", way) for way in ways)
    total = Fraction(1, c) + Fraction(1, d)
    yield (
        rf"\frac{{{total.numerator}}}{{{total.denominator}}}",
        rf"\frac{{1}}{{{c}}}+\frac{{1}}{{{d}}}",
    )
    yield f"x^2+{c + d}x+{c * d}", f"(x+{c})(x+{d})"
    yield f"x^2+{c + d}x+{c * d}", f"x^2+{c}x+{d}x+{c * d}"
    yield f"x^2+{c + d}x+{c * d}", f"(x+{c})(x+{d})+0"
    yield f"(x+{c})(x+{d})", f"x^2+{c + d}x+{c * d}"
    yield rf"{c}\sqrt{{{d}}}", rf"\sqrt{{{c}}}\cdot\sqrt{{{c * d}}}"
    yield f"I={a}", f"I={a + 1}"
    yield f"f({b})={a}", f"f({b})={a + 1}"
    yield f"x^2+{b}=0", f"x^2+{b + 1}=0"
    yield f"{c}R-{c}r", "0"
    yield f"{c}R-{d}r", f"{c}r-{d}R"
    yield f"10^{{-{a + 20}}}", f"10^{{-{a + 21}}}"
    yield rf"{b}\frac{{1}}{{3}}\%", r"\frac{1}{3}\%"
    yield rf"{c}\mathbf{{i}}-{d}\mathbf{{j}}", rf"{c}\mathbf{{i}}+{d}\mathbf{{j}}"
    yield rf"{a}\text{{ kg}}", rf"{a}\text{{ g}}"
    yield rf"{a}\text{{ min}}", rf"{a}\text{{ s}}"
    yield rf"{b}\text{{ dozen}}", f"{b}"
    yield f"{c},{c},{d}", f"{c},{d},{d}"
    yield f"{b}:{a}", f"{2 * b}:{2 * a}"
    yield f"{a}", f"{a * b}.0/{b}.0"
    yield f"{a / 4}", f"{a}.0/4"
    yield f"x^{c + d}", rf"x^{{{c}}} \cdot x^{{{d}}}"
    yield f"{c}x+{c * d}", f"{c}(x+{d})"
    yield f"x={c}\\\\y={d}", f"x={c + 1}\\\\y={d}"


@pytest.mark.parametrize("turn", range(TURNS))
def test_another_form_of_a_value_is_right(turn: int) -> None:
    """Literals, fractions, roots, powers of ten, reordered sums and other signs."""
    for gold, answer in right(turn):
        assert verdict(gold, answer, "?", CLOSINGS[turn % 3]) == 1.0, (gold, answer)


@pytest.mark.parametrize("turn", range(TURNS))
def test_a_way_to_a_value_is_wrong(turn: int) -> None:
    """Operations that are left to be carried out, and other values."""
    for gold, answer in wrong(turn):
        assert verdict(gold, answer, "?", CLOSINGS[turn % 3]) == 0.0, (gold, answer)


@pytest.mark.parametrize("turn", range(TURNS))
def test_a_formula_of_the_question_is_wrong(turn: int) -> None:
    """Although its value is right; the reference itself may stand in the question."""
    some = random.Random(2000 + turn)
    a, b, c = some.randint(2, 9), some.randint(11, 29), some.randint(2, 9)
    part = Fraction(a, b)
    for gold, formula in (
        (rf"\frac{{{part.numerator}}}{{{part.denominator}}}", rf"\frac{{{a * c}}}{{{b * c}}}"),
        (rf"{c}\sqrt{{3}}", rf"\sqrt{{{3 * c * c}}}"),
        (f"{b}", rf"\frac{{{b * c}}}{{{c}}}"),
        (f"{b}", f"{b * c} / {c}"),
        (f"{a}x+{b}y", f"{b}y+{a}x"),
    ):
        prompt = f"Simplify ${formula}$."
        for closing in CLOSINGS:
            assert verdict(gold, formula, prompt, closing) == 0.0, formula
            assert verdict(gold, gold, f"Is ${gold}$ or ${formula}$ right?", closing) == 1.0, gold


@pytest.mark.parametrize("turn", range(TURNS))
def test_a_division_that_the_question_asks_for_is_to_be_carried_out(turn: int) -> None:
    """Although one fraction may be an answer."""
    some = random.Random(3000 + turn)
    a, b = some.randint(11, 99), some.randint(2, 9)
    for prompt in (
        f"Divide {a * b} by {b}.",
        f"If {b} boxes hold {a * b} eggs, how many has each?",
    ):
        for closing in CLOSINGS:
            assert verdict(f"{a}", f"{a * b}/{b}", prompt, closing) == 0.0
            assert verdict(f"{a}", rf"\frac{{{a * b}}}{{{b}}}", prompt, closing) == 0.0
            assert verdict(f"{a}", f"{a}", prompt, closing) == 1.0


@pytest.mark.parametrize(
    "word", ["not", "at least", "less than", "twice", "negative", "anything but", "about twice"]
)
def test_words_around_a_stated_formula_count(word: str) -> None:
    """Those before it change it, and so do those behind it."""
    for number in range(2, 60):
        for response in (
            f"The answer is {word} ${number}$.",
            f"The answer is ${number}$ million.",
            f"The answer is ${number}$ through ${number + 4}$.",
            f"The answer is ${number}$ or {number + 1}.",
        ):
            problem = Problem(id="1", prompt="?", answer=f"{number}")
            assert score("math", response, problem) == 0.0, response


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        ("0.0009", "0.0009004", False),
        ("0.0009", "0.00090004", True),
        ("0.0001234567", "0.0001235", True),
        ("0.0001234567", "0.000124", False),
        ("0.0000000", "0.0000004", True),
        ("12.3456784", "12.345678", True),
        ("12.345678", "12.345679", False),
        ("0.1234567", "0.123457", True),
        ("0.1234567", "0.12346", False),
    ],
)
def test_a_decimal_number_may_be_rounded(gold: str, answer: str, right: bool) -> None:
    """To six decimals, and below 1 to four significant digits if these are more."""
    problem = Problem(id="1", prompt="How much?", answer=gold)
    assert score("math", f"\\boxed{{{answer}}}", problem) == right

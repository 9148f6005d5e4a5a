r"""Fifty answers of each kind, made by templates that know no grammar.

A template draws its numbers and knows the value by arithmetic, so the verdict that is due does not
depend on how `math` reads.
"""

import math
import random
from collections.abc import Callable, Iterator
from fractions import Fraction

import pytest

from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers import score

Case = tuple[str, str, str]  # question, gold, answer
Template = Callable[[random.Random], Iterator[Case]]

EACH = 50


def two(rng: random.Random) -> tuple[int, int]:
    a, b = rng.sample(range(2, 60), 2)
    return max(a, b), min(a, b)


def echoes(rng: random.Random) -> Iterator[Case]:
    """The question's formula, as it is or rewritten without carrying anything out."""
    a, b = two(rng)
    for sign, value in (("+", a + b), ("-", a - b), (r"\times", a * b), (r"\cdot", a * b)):
        formula, question = f"{a} {sign} {b}", f"What is {a} {sign} {b}?"
        for echo in (
            formula, f"{a}{sign} {b}", f"({a}) {sign} ({b})", f"{formula}+0", f"0+{formula}",
            f"({formula})", rf"\left({formula}\right)", f"1 \\cdot ({formula})", f"-(-({formula}))",
            rf"\frac{{{formula}}}{{1}}", f"{{{a}}} {sign} {{{b}}}", f"({formula})^1",
            rf"\sqrt{{({formula})^2}}", f"{a}.0 {sign} {b}.0",
        ):  # fmt: skip
            yield question, str(value), echo
        yield question, str(value), f"{formula} = {value + 1}"
    yield f"What is {a} times {b}?", str(a * b), f"{a}*{b}"
    yield f"Subtract {b} from {a}.", str(a - b), f"{a} \u2212 {b}"
    yield f"Subtract {b} from {a}.", str(a - b), f"{a}\u2013{b}"
    yield f"What is {a} + {b}?", str(a + b), f"{b}+{a}"


def unfinished(rng: random.Random) -> Iterator[Case]:
    """A number that is left to be calculated, which stands nowhere in the question."""
    a, b = two(rng)
    n, k = rng.randrange(5, 12), rng.randrange(2, 4)
    yield "How many?", str(math.comb(n, k)), rf"\binom{{{n}}}{{{k}}}"
    yield "How many?", str(math.factorial(n)), f"{n}!"
    yield "How many?", str(a * b + 7), f"{a} \\cdot {b} + 7"
    yield "How many?", str(a**3), f"{a}^3"
    yield "How many?", str(a * a), rf"\sqrt{{{a**4}}}"
    yield "How many?", str(k), rf"\log_{{{a}}} {a**k}"
    yield "How large?", str(a), rf"\sqrt{{{a * a}}}"
    yield "How large?", "1", rf"\sin^2 {a} + \cos^2 {a}"


def other_equations(rng: random.Random) -> Iterator[Case]:
    """Equations without an unknown, or without a real solution, for another one."""
    a, b = two(rng)
    yield "Find the current.", f"I={a}", f"I={b}"
    yield "Find the eccentricity.", rf"e=\frac{{1}}{{{a}}}", rf"e=\frac{{1}}{{{b}}}"
    yield "Find it.", f"f({a})={b}", f"f({a})={b + 1}"
    yield "Find it.", f"f({a})={b}", f"f({a + 1})={b}"
    yield "Find it.", f"I={a}", f"{b}={b}"
    yield "Which?", f"x^2+{a}=0", f"x^2+{b}=0"
    yield "Which?", rf"\log_2({2**5})=5", rf"\log_2({2**6})=6"
    yield "Which?", rf"\frac{{dy}}{{dx}}={a}x", rf"\frac{{dy}}{{dx}}={b}x"
    yield "Which?", f"f'(x)={a}x", f"f(x)={a}x"
    yield "Which?", f"y'={a}y", f"y={a}y"
    yield "Solve.", rf"x={a}\\y={b}", rf"x={a + 1}\\y={b}"
    yield "Solve.", rf"x={a} \quad y={b}", rf"{b}"


def other_letters(rng: random.Random) -> Iterator[Case]:
    """The case and the order of letters, and marks on them."""
    low, up = rng.choice([("r", "R"), ("m", "M"), ("a", "A"), ("v", "V"), ("t", "T")])
    a, _ = two(rng)
    yield "Area?", f"{up}-{low}", "0"
    yield "Area?", f"{up}-{low}", f"{low}-{up}"
    yield "Mass?", rf"\frac{{{a}{up}}}{{{up}+{low}}}", rf"\frac{{{a}}}{{2}}"
    yield "Area?", rf"\pi({up}^2-{low}^2)", "0"
    first, second, third = rng.sample("ABCDEFGHKLMNPQST", 3)
    yield "Which order?", first + second + third, first + third + second
    yield "Which angle?", rf"\angle {first}{second}{third}", rf"\angle {first}{third}{second}"
    yield "Which tosses?", "HTH", rng.choice(["HHT", "THH"])
    yield "Which matrix?", f"{first}^T", first


def tiny_values(rng: random.Random) -> Iterator[Case]:
    """Exact values far below the precision of floating point."""
    n = rng.randrange(55, 90)
    yield "How likely?", rf"\frac{{1}}{{2^{{{n}}}}}", rf"\frac{{1}}{{2^{{{n + 1}}}}}"
    yield "How likely?", rf"\frac{{1}}{{{n}!}}", rf"\frac{{1}}{{{n - 1}!}}"
    yield "How small?", f"10^{{-{n}}}", f"10^{{-{n - 1}}}"
    yield "How small?", f"10^{{-{n}}}", f"-10^{{-{n}}}"
    yield "How small?", f"(2^{{-{n}}}, 1)", f"(2^{{-{n + 1}}}, 1)"


def mixed_and_units(rng: random.Random) -> Iterator[Case]:
    """The whole part before a fraction, and units that differ."""
    a, b = rng.sample(range(3, 90), 2)
    yield "Which share?", rf"{a}\frac13\%", rf"{b}\frac13\%"
    one, other = rng.choice(
        [("h", "min"), ("kg", "g"), ("eV", "keV"), ("L", "mL"), ("J", "kJ"), ("m", "km"),
         ("days", "weeks"), ("ft^2", "ft^3"), ("mph", "km/h"), ("hours", "minutes")]
    )  # fmt: skip
    yield "How much?", rf"{a} \text{{ {one}}}", rf"{a} \text{{ {other}}}"
    yield "How many?", rf"{a} \text{{ dozen}}", str(a)
    yield "How many?", str(a), rf"{a} \text{{ dozen}}"
    yield "How many?", rf"{a} \text{{ hundred}}", str(a)
    yield "Where?", rf"{a}\text{{ east}}", rf"{a}\text{{ west}}"
    yield "How many?", rf"{a}\text{{ or more}}", rf"{a}\text{{ or less}}"


def vectors_and_lists(rng: random.Random) -> Iterator[Case]:
    """Bold vectors, sequences with dots, and repeated items."""
    a, b = two(rng)
    yield "Which?", rf"{a}\mathbf{{i}}-{b}\mathbf{{j}}", rf"{a}\mathbf{{i}}+{b}\mathbf{{j}}"
    yield "Which?", rf"{a}\mathbf{{i}}-{b}\mathbf{{j}}", str(a)
    yield "Which?", rf"{a}\mathbf{{A}}-{b}\mathbf{{I}}", rf"{a}\mathbf{{A}}"
    yield "Which?", rf"1,2,3,\ldots,{a}", f"1,2,3,{a}"
    yield "Which?", f"{b},{b},{a}", f"{b},{a},{a}"
    yield "Which?", f"({b}, {a})", f"({a}, {b})"
    yield "Which?", f"[{b}, {a}]", f"({b}, {a})"
    yield "Which?", rf"\{{{b}, {a}\}}", f"{b}"


def words_around(rng: random.Random) -> Iterator[Case]:
    """Words that change what is stated."""
    a, b = two(rng)
    for words in (
        "not ${}$", "at least ${}$", "at most ${}$", "twice ${}$", "negative ${}$",
        "anything but ${}$", "less than ${}$", "more than ${}$", "half of ${}$", "${}$ million",
        f"${{}}$ through ${b}$",
        f"${{}}$ times as large as ${b}$", f"${{}}$ or ${b}$", "not {}", "never {}", "minus {}",
        f"either ${{}}$ or ${b}$", "${}$ squared", "the opposite of ${}$", "under ${}$",
    ):  # fmt: skip
        yield "How many?", str(a), f"The answer is {words.format(a)}."


WRONG: list[Template] = [
    echoes,
    unfinished,
    other_equations,
    other_letters,
    tiny_values,
    mixed_and_units,
    vectors_and_lists,
    words_around,
]


def same_numbers(rng: random.Random) -> Iterator[Case]:
    """A number as a decimal, a fraction, a percentage, with signs of other keyboards."""
    a, b = two(rng)
    part = Fraction(a, rng.choice([2, 4, 5, 8, 20, 25]))
    decimal, below = f"{float(part):g}", part.denominator
    if below > 1:
        for gold, answer in (
            (rf"\frac{{{part.numerator}}}{{{below}}}", decimal),
            (decimal, rf"\dfrac{{{part.numerator}}}{{{below}}}"),
            (decimal, f"{part.numerator}/{below}"),
            (rf"-\frac{{{part.numerator}}}{{{below}}}", f"-{decimal}"),
            (rf"\frac{{{part.numerator}}}{{{below}}}", f"{part.numerator}\u2044{below}"),
        ):
            yield "How much?", gold, answer
    yield "How many?", str(a), f"{a}.0"
    yield "How many?", str(-a), f"\u2212{a}"
    yield "How many?", str(-a), f"\u2013{a}"
    yield "How many?", str(a), "".join(chr(0xFEE0 + ord(digit)) for digit in str(a))
    yield "How many?", f"{a},000", f"{a}000"
    yield "How many?", f"{a}000", f"{a}{{,}}000"
    yield "How many?", str(a), f"${a}$"
    yield "How many?", str(a), rf"\text{{{a}}}"
    yield "How many?", str(a), f"x = {a}"
    yield "How many?", f"{a}%", rf"{a}\%"
    yield "How large?", f"{a}", f"+{a}"
    yield f"What is {a} + {b}?", str(a + b), f"{a} + {b} = {a + b}"


def repeating(rng: random.Random) -> Iterator[Case]:
    """A fraction as a repeating decimal."""
    nines = rng.choice([9, 99, 999])
    digits = rng.randrange(1, nines)
    value = Fraction(digits, nines)
    period = str(digits).zfill(len(str(nines)))
    gold = rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
    yield "How much?", gold, rf"0.\overline{{{period}}}"
    yield "How much?", rf"0.\overline{{{period}}}", gold


def roots_and_pi(rng: random.Random) -> Iterator[Case]:
    """Radicals, multiples of pi and powers of ten, also in a calculator's notation."""
    a, b = rng.randrange(2, 20), rng.choice([2, 3, 5, 7, 11])
    yield "How long?", rf"{a}\sqrt{{{b}}}", rf"\sqrt{{{a * a * b}}}"
    yield "How long?", rf"{a}\sqrt{{{b}}}", f"{a}*sqrt({b})"
    yield "How long?", rf"{a}\sqrt{{{b}}}", f"{a}\u221a{b}"
    yield "Which area?", rf"{a}\pi", f"{a}*pi"
    yield "Which area?", rf"{a}\pi", f"{a}\u03c0"
    yield "Which angle?", rf"\frac{{\pi}}{{{a}}}", f"pi/{a}"
    yield "How many?", rf"{a} \times 10^{{5}}", f"{a}00000"
    yield "How many?", f"{a}00000", rf"{a} \cdot 10^5"
    yield "Which?", rf"\ln {b}", f"ln({b})"
    yield "Which?", f"x^{{{a}}}", f"x**{a}"


def expressions(rng: random.Random) -> Iterator[Case]:
    """Sums in another order, lists in another order, and intervals."""
    a, b = two(rng)
    yield "Expand.", f"{a}x+{b}", f"{b} + {a}x"
    yield "Expand.", f"x^2+{a}x-{b}", f"x^{{2}} - {b} + {a} x"
    yield "Which?", f"({b}, {a})", rf"\left({b},\,{a}\right)"
    yield "Which?", f"{b}, {a}", f"{a}, {b}"
    yield "Which?", rf"\{{{b}, {a}\}}", rf"\{{{a}, {b}\}}"
    yield "Which?", rf"[{b}, \infty)", rf"\left[{b}, \infty\right)"
    yield "Solve.", f"x={b} or x={a}", f"{b}, {a}"
    yield "Factor.", f"(x+{a})(x-{b})", f"(x-{b})(x+{a})"
    yield "Which?", rf"\frac{{x}}{{{a}}}", rf"\frac{{1}}{{{a}}}x"


def statements(rng: random.Random) -> Iterator[Case]:
    """A stated answer with words that do not change it."""
    a, b = two(rng)
    for words in (
        "The answer is {}.", "The answer is {}, which is the total.", "The answer is therefore {}.",
        "The answer is {}, since it is so.", "The answer is {} because it is so.", "#### {}",
        "The final answer is: ${}$", "So the answer is **{}**.", "the answer is ${}$, all in all",
        "<answer>{}</answer>", "### Final Answer\n{}", "The answer is: \\[ {} \\]",
    ):  # fmt: skip
        yield f"How many pages? {b}", str(a), words.format(a)


RIGHT: list[Template] = [same_numbers, repeating, roots_and_pi, expressions, statements]


def drawn(template: Template) -> list[Case]:
    rng = random.Random(template.__name__)
    cases: list[Case] = []
    while len(cases) < EACH:
        cases += template(rng)
    return cases


def verdict(case: Case) -> float:
    question, gold, answer = case
    response = answer if "nswer" in answer or "####" in answer else f"\\boxed{{{answer}}}"
    return score("math", response, Problem(id="1", prompt=question, answer=gold))


@pytest.mark.parametrize("template", WRONG, ids=lambda template: template.__name__)
def test_no_wrong_answer_of_a_kind_is_paid(template: Template) -> None:
    """Precision goes before recall."""
    assert not [case for case in drawn(template) if verdict(case) != 0]


@pytest.mark.parametrize("template", RIGHT, ids=lambda template: template.__name__)
def test_right_answers_of_a_kind_are_paid(template: Template) -> None:
    """In the forms that people and models write."""
    assert not [case for case in drawn(template) if verdict(case) != 1]


@pytest.mark.parametrize("template", WRONG + RIGHT, ids=lambda template: template.__name__)
def test_the_reference_itself_is_paid(template: Template) -> None:
    """So that no kind is refused as a whole."""
    golds = {(question, gold) for question, gold, _ in drawn(template)}
    assert not [gold for question, gold in golds if verdict((question, gold, gold)) != 1]

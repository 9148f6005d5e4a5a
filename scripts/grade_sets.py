r"""How a verifier judges the reference answers of published data sets, as a table.

    python scripts/grade_sets.py math.jsonl gsm8k.jsonl [--verifier math] [--show 20]

It fetches nothing: download the files yourself. Each is JSONL with a question and an answer under
one of their usual names; a worked solution counts as its last \boxed{...} or what follows `####`.

own: the answer in a box. sentence: "So the answer is $...$." rewritten: another form of the same
value, boxed. mutated: another number or a part of the answer, boxed; the share that is paid. echo:
each formula of the question, as it is and rewritten without a change, boxed; the share that is
paid, without those that have the answer's own text.
"""

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers import VerifierPool
from pubswap_protocol.verifiers.extract import last_boxed

QUESTIONS = ("problem", "question", "Question", "content", "input", "prompt")
ANSWERS = ("answer", "target", "Answer", "final_answer", "solution")
KINDS = ("own", "sentence", "rewritten", "mutated", "echo")

_FORMULA = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$|\\\[(.+?)\\\]|\\\((.+?)\\\)", re.DOTALL)
_OPERATION = re.compile(r"[-+^*/]|\\[a-z]")
_SPACES = re.compile(r"\s*\\!\s*|(?<!\\)\\[,;: ]|\\left|\\right|\\?\$")
_INTEGER = re.compile(r"-?\d+")
_THOUSANDS = re.compile(r"-?\d{1,3}(?:(?:,|\{,\})\d{3})+(?:\.\d+)?")
_SCIENTIFIC = re.compile(r"-?[\d.]+e-?\d+")
_FRACTION = re.compile(r"(-?)(\d*)\s*\\[dt]?frac(?:\{(\d+)\}\{(\d+)\}|(\d)(\d))")
_ROOT = re.compile(r"(-?)(\d*)\s*\\sqrt(?:\{(\d+)\}|(\d))")
_SUM = re.compile(
    r"(?!\d+-\d+-\d{4}$|\d{4}-)(?:[\w\s+\-^{}()./]|\\[dt]?frac(?=[\d{])|\\sqrt|\\pi)+"
)
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d+)?|\.\d+)")
_AROUND = re.compile(  # what may surround a number that is the whole answer
    r"(?<=\d)\s?\$?[a-z]{1,3}(?:\^\{?\d\}?)?\$?$|(?:\s[A-Za-z]{2,})+\.?\s*$|\s\(\s?[A-Za-z][^()\d]*\)\s*$"
    r"|\\(?:text\w*|mbox|mathrm)(?:\s?\{[^{}\d]*\}(?:\^\{?\d\}?)?)?|\\?%|\^\{?\\circ\}?|_\{?\d+\}?"
    r"|^\s*\$?\s*[a-zA-Z]+(?:\([^()]*\))?\s*=|(?<=\d)(?:th|st|nd|rd)\b|\\\$"
    r"|\\[,;! {}]|[\s(){}\[\]$\u20ac\u00a3\u00a5.]"
)


def main() -> None:
    """Print a row for each file, and the verdicts that are not due."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--verifier", default="math")
    parser.add_argument("--rows", type=int, help="how many rows of each file; default: all")
    parser.add_argument("--show", type=int, default=0, help="how many wrong verdicts to print")
    options = parser.parse_args()
    print("| set | rows | " + " | ".join(KINDS) + " |\n" + "|---" * (len(KINDS) + 2) + "|")
    with VerifierPool() as pool:
        for path in options.files:
            problems = list(islice(read(path, options.verifier), options.rows))
            cases = [case for problem in problems for case in forms(problem)]
            paid = pool.score_many(options.verifier, [(text, p) for _, text, p in cases])
            print(f"| {path.stem} | {len(problems)} | " + " | ".join(row(cases, paid)) + " |")
            for kind, text, problem in islice(odd(cases, paid), options.show):
                print(f"    {kind}: {problem.answer!r} | {text!r}")


def read(path: Path, verifier: str) -> Iterator[Problem]:
    """The problems of a file that have a question and an answer."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        fields = json.loads(line)
        question, answer = first(fields, QUESTIONS), first(fields, ANSWERS)
        answer = answer.rpartition("####")[2].replace(",", "") if "####" in answer else answer
        answer = (last_boxed(answer) or answer).strip().strip("$")
        if question and answer:
            yield Problem(id=str(number), prompt=question, answer=answer, verifier=verifier)


def first(fields: dict[str, Any], names: tuple[str, ...]) -> str:
    """The first of the columns that a row has; body and question are one text."""
    values = [fields[name] for name in names if fields.get(name) is not None]
    value = values[0] if values else ""
    value = value[0] if isinstance(value, list) and value else value
    body = (fields.get("body") or fields.get("Body") or "") if names is QUESTIONS else ""
    return f"{body} {value}".strip()


def forms(problem: Problem) -> Iterator[tuple[str, str, Problem]]:
    """Responses to a problem, with their kind."""
    answer = problem.answer
    yield "own", box(answer), problem
    yield "sentence", f"So the answer is ${answer}$.", problem
    yield "rewritten", box(rewritten(answer)), problem
    if (other := mutated(answer)) != answer:
        yield "mutated", box(other), problem
    for found in _FORMULA.findall(problem.question):
        formula = next(filter(None, found)).strip()
        if _OPERATION.search(formula) and formula != answer:
            for echo in (formula, f"{formula}+0", f"({formula})", f"0+{formula}"):
                yield "echo", box(echo), problem


def box(answer: str) -> str:
    """A usual closing."""
    return f"Thus, the answer is:\n\\[ \\boxed{{{answer}}} \\]"


def row(cases: list[tuple[str, str, Problem]], paid: list[float]) -> list[str]:
    """The share of each kind that is paid."""
    total, right = Counter[str](), Counter[str]()
    for (kind, _, _), score in zip(cases, paid, strict=True):
        total[kind] += 1
        right[kind] += score == 1
    return [
        f"{100 * right[kind] / total[kind]:.2f} % of {total[kind]}" if total[kind] else "-"
        for kind in KINDS
    ]


def odd(
    cases: list[tuple[str, str, Problem]], paid: list[float]
) -> Iterator[tuple[str, str, Problem]]:
    """The wrong verdicts."""
    for case, score in zip(cases, paid, strict=True):
        if (score == 1) == (case[0] in ("mutated", "echo")):
            yield case


def rewritten(answer: str) -> str:
    """An answer of equal value in another form, or only with other spaces."""
    plain = " ".join(_SPACES.sub("", answer).split()).rstrip(".")
    if _SCIENTIFIC.fullmatch(plain):
        return plain
    if _THOUSANDS.fullmatch(plain):
        return re.sub("[{},]", "", plain)
    if _INTEGER.fullmatch(plain):
        return f"{int(plain)}.0"
    if fraction := _FRACTION.fullmatch(plain):
        sign, whole, *parts = fraction.groups()
        top, bottom = (int(part) for part in parts if part)
        return sign + quotient(Fraction(int(whole or 0) * bottom + top, bottom))
    if root := _ROOT.fullmatch(plain):
        sign, factor, *radicands = root.groups()
        radicand = next(int(part) for part in radicands if part)
        return f"{sign}\\sqrt{{{int(factor or 1) ** 2 * radicand}}}"
    if re.search(r"\b(?:and|or)\b", plain):
        return plain
    mark = ";" if ";" in plain else ","
    items = split(plain, mark)
    if len(items) > 1:
        return f"{mark} ".join(item.strip(",; ") for item in reversed(items))
    if _SUM.fullmatch(plain):
        terms = [term.strip() for term in split(plain, "+-")]
        return "".join(f" {t if t[0] in '+-' else '+' + t}" for t in reversed(terms)).lstrip(" +")
    return plain


def mutated(answer: str) -> str:
    """The first number of an answer that contains more; else another number."""
    number = _NUMBER.search(answer)
    if number is None:
        return "7"
    if ":" in answer or _AROUND.sub("", answer) == _AROUND.sub("", number[0]):
        return f"{answer[: number.start()]}{Decimal(number[0]) + 1}{answer[number.end() :]}"
    return number[0]


def quotient(value: Fraction) -> str:
    """A fraction as a decimal number, or with a slash where that would be rounded."""
    exact = (value * 10**4).denominator == 1
    return f"{float(value):g}" if exact else f"{value.numerator}/{value.denominator}"


def split(text: str, marks: str) -> list[str]:
    """A text divided before each mark that is outside all brackets and follows an operand."""
    cuts, depth, last = [0], 0, ""
    for index, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0 and character in marks and last and (last.isalnum() or last in ")]}"):
            cuts.append(index)
        last = character if character != " " else last
    return [text[start:end] for start, end in pairwise([*cuts, len(text)])]


if __name__ == "__main__":
    main()

"""The paper's data sets on the hub: where they are, and how to read a row."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pubswap_client.data.examples import Example, Unusable, ask
from pubswap_client.data.spec import DataSpec, SourceName
from pubswap_protocol.errors import InvalidProblems
from pubswap_protocol.verifiers.extract import last_boxed

if TYPE_CHECKING:
    from pyarrow import Table

Row = Mapping[str, Any]
_LETTERS = "ABCD"
_BRACED = re.compile(r"\\(?:boxed|fbox|framebox)\s*\{")
_UNBRACED = re.compile(r"\\(?:boxed|fbox)\s*([^\s{$][^$\n]*?)\s*\$")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3})")

Read = Callable[[Row, DataSpec], Example]


@dataclass(frozen=True)
class HubSet:
    """A data set on the hub.

    `files` are patterns of files to download, `columns` the ones that `read` needs. Only this set
    of its source has the column `mark`, which tells local files apart. `as_hub` converts a file of
    another origin to the hub's form, or raises InvalidProblems.
    """

    name: str
    hub: str
    columns: tuple[str, ...]
    read: Read
    verifier: str = "math"
    mark: str | None = None
    files: tuple[str, ...] = ("*.parquet", "*.jsonl")
    as_hub: "Callable[[Table, str], Table]" = lambda table, _where: table


def _math(row: Row, spec: DataSpec) -> Example:
    question = text_of(row, "problem")
    answer = boxed_answer(text_of(row, "solution"))
    if not answer:
        raise Unusable("solution: no \\boxed{...} with an answer")
    return Example(question, ask(question, spec), answer, text_of(row, "type"))


def _deepmath(row: Row, spec: DataSpec) -> Example:
    question = text_of(row, "question")
    levels = [level.strip() for level in text_of(row, "topic").split("->")]
    # Every topic is below "Mathematics", which says nothing.
    levels = levels[1:] if levels[0] == "Mathematics" and len(levels) > 1 else levels
    topic = " > ".join(levels)
    return Example(question, ask(question, spec), text_of(row, "final_answer"), topic)


def _gsm8k(row: Row, spec: DataSpec) -> Example:
    question = text_of(row, "question")
    _, mark, answer = text_of(row, "answer").rpartition("####")
    if not mark or not answer.strip():
        raise Unusable('answer: no "#### " with the final answer')
    answer = _THOUSANDS.sub("", answer.strip())
    return Example(question, ask(question, spec), answer, "gsm8k")


def _medqa(row: Row, spec: DataSpec) -> Example:
    question, options = text_of(row, "question"), row["options"]
    if not isinstance(options, Mapping):
        raise Unusable('options: not a table such as {"A": ..., "B": ...}')
    texts = {letter: text_of(options, letter) for letter in options if options[letter] is not None}
    letter = text_of(row, "answer_idx")
    if letter not in texts:
        raise Unusable("answer_idx: none of the options")
    # MedQA names no subjects, only the examination that a question is for.
    return _choice(question, texts, letter, f"USMLE {text_of(row, 'meta_info')}", spec)


def _counted_from_zero(table: "Table", where: str) -> "Table":
    """Count options from 0, as the hub's files do; the authors' own files count from 1."""
    from pyarrow import compute

    counted = {cop for cop in table["cop"].unique().to_pylist() if cop in range(5)}
    if {0, 4} <= counted or (counted and not counted & {0, 4}):
        has = "both 0 and 4" if 0 in counted else "neither 0 nor 4"
        raise InvalidProblems(
            f"cop: {where} has {has}, so it is unclear whether it counts options from 0, as the "
            "hub's files do, or from 1, as the authors' do. Give the whole file."
        )
    if 4 not in counted:
        return table
    index = table.column_names.index("cop")
    return table.set_column(index, "cop", compute.subtract(table["cop"], 1))


def _medmcqa(row: Row, spec: DataSpec) -> Example:
    question = text_of(row, "question")
    if row["cop"] == -1:
        raise Unusable("cop: no answer is given (the hub's test set)", fault=False)
    if row["cop"] not in range(len(_LETTERS)):
        raise Unusable("cop: not 0 to 3")
    texts = {letter: text_of(row, f"op{letter.lower()}") for letter in _LETTERS}
    return _choice(question, texts, _LETTERS[row["cop"]], text_of(row, "subject_name"), spec)


def _choice(
    question: str, options: Mapping[str, str], letter: str, topic: str, spec: DataSpec
) -> Example:
    # A question stays the same if its options are in another order.
    identity = "\n".join([question, *sorted(options.values())]).casefold()
    listed = "\n".join(f"{letter}. {text}" for letter, text in sorted(options.items()))
    return Example(identity, ask(f"{question}\n\n{listed}", spec), letter, topic)


def text_of(row: Row, column: str) -> str:
    """A row's text; raises Unusable if there is none."""
    value = row[column]
    if not isinstance(value, str):
        raise Unusable(f"{column}: {'empty' if value is None else 'not a text'}")
    if not value.strip():
        raise Unusable(f"{column}: empty")
    return value.strip()


def boxed_answer(solution: str) -> str | None:
    r"""The content of a MATH solution's last box: \boxed{x}, \fbox{x} or \boxed x."""
    braced = last_boxed(_BRACED.sub(r"\\boxed{", solution))
    if braced is not None:
        return braced.strip()
    unbraced = _UNBRACED.findall(solution)
    return str(unbraced[-1]) if unbraced else None


_MATH = ("problem", "solution", "type")
_DEEPMATH = ("question", "final_answer", "topic")
_GSM8K = ("question", "answer")
_MEDQA = ("question", "options", "answer_idx", "meta_info")
_MEDMCQA = ("question", "opa", "opb", "opc", "opd", "cop", "subject_name")
_MEDICAL = (
    HubSet("medqa", "GBaker/MedQA-USMLE-4-options", _MEDQA, _medqa, "choice", mark="options"),
    HubSet(
        "medmcqa",
        "openlifescienceai/medmcqa",
        _MEDMCQA,
        _medmcqa,
        "choice",
        mark="opa",
        as_hub=_counted_from_zero,
    ),
)
HUB_SETS: Mapping[SourceName, tuple[HubSet, ...]] = {
    "math": (HubSet("math", "EleutherAI/hendrycks_math", _MATH, _math),),
    "deepmath": (HubSet("deepmath", "zwhe99/DeepMath-103K", _DEEPMATH, _deepmath),),
    "gsm8k": (HubSet("gsm8k", "openai/gsm8k", _GSM8K, _gsm8k, files=("main/*.parquet",)),),
    "medical": _MEDICAL,
}

"""How a row of each hub data set is read."""

from typing import Any

import pytest

from pubswap_client.data.convert.table import Row
from pubswap_client.data.examples import Unusable
from pubswap_client.data.sources import HUB_SETS
from pubswap_client.data.spec import SourceName
from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers import score, verifier_of
from support.client.hub_files import deepmath_rows, math_rows, medmcqa_rows, medqa_rows


def read(source: SourceName, row: dict[str, Any], place: int = 0) -> Problem:
    return HUB_SETS[source][place].problem(Row(1, row))


def test_a_math_row_asks_for_a_box_and_its_answer_is_right_in_one() -> None:
    """A MATH prompt asks for a boxed answer, and a boxed right answer scores 1."""
    problem = read("math", math_rows("counting_and_probability", "train", 3)[2])
    assert problem.prompt.endswith("\\boxed{}.")
    assert problem.topic == "Counting & Probability"
    right = verifier_of("math").right_response(problem)
    assert score("math", right, problem) == 1.0
    assert score("math", "\\boxed{-5}", problem) == 0.0


def test_deepmath_topics_leave_out_the_common_root() -> None:
    """The topic is the path below "Mathematics"."""
    row = deepmath_rows(1)[0]
    assert read("deepmath", row).topic == "Algebra > Linear Algebra > Determinants"
    assert read("deepmath", {**row, "topic": "Other"}).topic == "Other"


def test_a_question_of_the_kind_multi_has_one_right_option_like_others() -> None:
    """MedMCQA's rows of both choice types give the same problem."""
    single, multi = ({**medmcqa_rows(1)[0], "choice_type": kind} for kind in ("single", "multi"))
    assert read("medical", single, 1) == read("medical", multi, 1)


def test_medical_rows_become_letters() -> None:
    """Rows of both medical sets get four lettered options and the right letter."""
    medqa, medmcqa = read("medical", medqa_rows(4)[2]), read("medical", medmcqa_rows(4)[3], 1)
    assert (medqa.answer, medqa.topic) == ("C", "USMLE step1")
    assert (medmcqa.answer, medmcqa.topic) == ("D", "Surgery")
    for problem in (medqa, medmcqa):
        assert [line[:3] for line in problem.prompt.splitlines()[2:6]] == [
            "A. ",
            "B. ",
            "C. ",
            "D. ",
        ]
        assert score("choice", f"I think so.\nAnswer: {problem.answer}", problem) == 1.0
        assert score("choice", "Answer: A", problem) == 0.0


def test_the_same_question_in_another_order_of_options_is_the_same() -> None:
    """An id depends on the question and its options, not on their order, white space or the
    file.
    """
    row = medqa_rows(1)[0]
    options = dict(zip("ABCD", reversed(row["options"].values()), strict=True))
    turned = {**row, "options": options, "answer_idx": "D", "question": f" {row['question']} "}
    assert read("medical", row).id == read("medical", turned).id
    other = {**row, "options": {**options, "A": "Another plan"}}
    assert read("medical", row).id != read("medical", other).id


@pytest.mark.parametrize(
    ("source", "place", "change", "column", "fault"),
    [
        ("math", 0, {"solution": "It is 3."}, "solution", True),
        ("math", 0, {"problem": None}, "problem", True),
        ("math", 0, {"type": ""}, "type", True),
        ("deepmath", 0, {"final_answer": " "}, "final_answer", True),
        ("medical", 0, {"answer_idx": "E"}, "answer_idx", True),
        ("medical", 0, {"options": ["x", "y"]}, "options", True),
        ("medical", 1, {"opb": None}, "opb", True),
        ("medical", 1, {"cop": 4}, "cop", True),
        ("medical", 1, {"cop": 1.0}, "cop", True),  # as of a table with gaps
        ("medical", 1, {"cop": -1}, "cop", False),
    ],
)
def test_a_row_that_cannot_be_used_names_its_column(
    source: SourceName, place: int, change: dict[str, Any], column: str, fault: bool
) -> None:
    """Broken rows and rows of an excluded kind are told apart; both name the column."""
    rows = {
        "math": [math_rows("algebra", "train", 1)],
        "deepmath": [deepmath_rows(1)],
        "medical": [medqa_rows(1), medmcqa_rows(1)],
    }
    with pytest.raises(Unusable, match=column) as caught:
        read(source, {**rows[source][place][0], **change}, place)
    assert caught.value.fault is fault

"""`json`: fields with weights, each compared in its way."""

import json
import time
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pubswap_protocol.errors import InvalidProblems, first_fault
from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers.registry import VERIFIERS, score
from pubswap_protocol.verifiers.verifier import Verifier

GOLD = '{"category": "fees", "amount": 12.5, "tags": ["late", "card"], "who": {"city": "Bonn"}}'
FIELDS = [
    {"name": "category", "weight": 0.5},
    {"name": "amount", "weight": 0.25, "tolerance": 0.1},
    {"name": "tags", "weight": 0.125, "set": True},
    {"name": "who.city", "weight": 0.125},
]
RIGHT = '{"category": "Fees", "amount": 12.6, "tags": ["card", "late"], "who": {"city": "Bonn"}}'


def verifier(fields: object = FIELDS) -> Verifier:
    return VERIFIERS.read({"name": "json", "fields": fields})


def problem(answer: str = GOLD, **metadata: object) -> Problem:
    return Problem(id="1", prompt='{"category": "fees"}', answer=answer, metadata=metadata)


def fenced(text: str) -> str:
    return f"So:\n```json\n{text}\n```\nThat is all."


@pytest.mark.parametrize(
    ("given", "right"),
    [
        ({"category": "fees"}, 0.5),
        ({"category": " FEES "}, 0.5),
        ({"category": "fees", "amount": 12.4}, 0.75),
        ({"category": "fees", "amount": 12.61}, 0.5),
        ({"category": "fees", "amount": "12.5"}, 0.5),
        ({"amount": True, "tags": ["card", "late", "late"]}, 0.125),
        ({"tags": ["card"]}, 0),
        ({"tags": ["card", "late", "x"]}, 0),
        ({"tags": "late"}, 0),
        ({"who": {"city": "bonn", "zip": 1}}, 0.125),
        ({"who": "Bonn"}, 0),
        ({"who.city": "Bonn"}, 0),
        ({"category": ["fees"]}, 0),
        ({"category": None}, 0),
        ({}, 0),
        (json.loads(RIGHT), 1),
        (json.loads(RIGHT) | {"further": 1}, 1),
    ],
)
def test_each_field_has_its_weight(given: object, right: float) -> None:
    """In a fence, or as the last object of the text."""
    written = json.dumps(given)
    assert score(verifier(), fenced(written), problem()) == right
    assert score(
        verifier(), f'Not {{"category": "fees"}}. <answer>{written}</answer>', problem()
    ) == (
        right if given else 0.5  # an empty object is none, as in \\frac{}{}
    )


@pytest.mark.parametrize(
    ("given", "gold", "right"),
    [
        ("1", "1.0", 1),
        ("10", "1e1", 1),
        ("0.1", "0.1000000000000000055511151231257827", 0),
        ("9007199254740993", "9007199254740992", 0),
        ("true", "1", 0),
        ("1", "true", 0),
        ("true", "true", 1),
        ("false", "0", 0),
        ("null", "null", 1),
        ("null", "false", 0),
        ('"1"', "1", 0),
        ('"null"', "null", 0),
        ('"\\u0066ees"', '"fees"', 1),
        ("[1, 2]", "[2, 1]", 0),
        ("[1, 2]", "[1, 2.0]", 1),
        ('{"b": 1, "c": "X"}', '{"c": "x", "b": 1}', 1),
        ('{"b": 1, "c": 2}', '{"b": 1}', 0),
        ("[true]", "[1]", 0),
        ('["true", true]', '["true", true]', 1),
    ],
)
def test_values_of_other_types_differ(given: str, gold: str, right: float) -> None:
    """Numbers are exact, and text is compared up to case and white space."""
    judge = VERIFIERS.read("json")
    assert score(judge, f'{{"a": {given}}}', problem(f'{{"a": {gold}}}')) == right


@pytest.mark.parametrize(
    "text",
    [
        RIGHT[:-1],
        RIGHT[:-1] + ",}",
        RIGHT + " I hope this helps",
        RIGHT + RIGHT,
        "Sure: " + RIGHT,
        f"[{RIGHT}]",
        '{"category": "cards", ' + RIGHT[1:],
        '{"c\\u0061tegory": "fees", ' + RIGHT[1:],
        '{"more": {"a": 1, "a": 2}, ' + RIGHT[1:],
        '{"more": NaN, ' + RIGHT[1:],
        '{"more": -Infinity, ' + RIGHT[1:],
        '{"more": 1e999, ' + RIGHT[1:],
        '{"more": ' + "9" * 500 + ", " + RIGHT[1:],
        '{"more": 01, ' + RIGHT[1:],
        '{"more": "\t", ' + RIGHT[1:],
        '{"more": 1, // so\n' + RIGHT[1:],
        '{"more": ' + '{"a":' * 64 + "1" + "}" * 64 + ", " + RIGHT[1:],
        '{"more": [1}, ' + RIGHT[1:],
        RIGHT.replace('"', "'"),
        RIGHT.replace("12.6", "12,6"),
        RIGHT.replace("12.6", "0x0c"),
        '"' + RIGHT.replace('"', '\\"') + '"',
        "",
    ],
)
def test_what_is_not_strict_json_scores_nothing(text: str) -> None:
    """Repeated keys, NaN, other text in the fence, and the like."""
    assert score(verifier(), fenced(RIGHT), problem()) == 1
    assert score(verifier(), fenced(text), problem()) == 0
    assert score(verifier(), fenced(RIGHT) + "\n" + fenced(text), problem()) == 0


@pytest.mark.parametrize(
    ("response", "right"),
    [
        (f"```JSON\n{RIGHT}```", 1),
        (f"```json {RIGHT}```", 1),
        (f"```json\n{RIGHT}", 1),
        (fenced("{}") + fenced(RIGHT), 1),
        (fenced(RIGHT) + fenced('{"category": "cards"}'), 0),
        (fenced(RIGHT) + '{"category": "cards"}', 1),
        (f"<think>{RIGHT}</think>", 0),
        (f"<think>{RIGHT}", 0),
        (f"<think>{{</think>{RIGHT}", 1),
        (f'{{"category": "cards"}} {RIGHT}', 1),
        (f'{RIGHT} {{"category": "cards"}}', 0),
        (f"{RIGHT} or {{x}}, \\frac{{}}{{}}, [1]", 1),
        (f'{{"a {{ [ {RIGHT}', 1),
        (f"```\n{RIGHT}\n```", 1),
        (f"\\boxed{{{RIGHT}}}", 1),
        (RIGHT.replace("Fees", "fees }"), 0.5),
        (RIGHT.replace('"who"', '"```json": "\\"}", "who"'), 1),
        (fenced(RIGHT.replace('"who"', '"```": "```json {", "who"')), 1),
    ],
)
def test_exactly_one_object_counts(response: str, right: float) -> None:
    """The last fence's, else the last: several candidates gain nothing."""
    assert score(verifier(), response, problem()) == right


@pytest.mark.parametrize(
    "response",
    [
        '{"category": "fees or cards"}',
        '{"category": ["fees", "cards"]}',
        '{"category": {"fees": 1, "cards": 1}}',
        '{"category1": "fees", "category2": "cards", "Category": "fees"}',
        '{"fees": "fees", "cards": "cards", "answers": ["fees", "cards"]}',
        '[{"category": "fees"}, {"category": "cards"}]',
        '{"category": "fees", "category": "cards"}',
        '{"category": "fees"} {"category": "cards"}',
        '{"a": {"category": "fees"}, "b": {"category": "cards"}}',
    ],
)
def test_hedging_gains_nothing(response: str) -> None:
    """At most the last of the two categories is paid."""
    assert score("json", response, problem('{"category": "fees"}')) == 0


def test_several_tolerances_pay_a_near_miss_in_part() -> None:
    """A field may be listed once for each."""
    judge = verifier([{"name": "a"}, {"name": "a", "tolerance": 1}])
    paid = [score(judge, f'{{"a": {given}}}', problem('{"a": 5}')) for given in (5, 6, 7)]
    assert paid == [1, 0.5, 0]


@pytest.mark.parametrize(
    "response",
    [
        *('{"a":' * 13_000, '{"a":' * 10_000 + "1" + "}" * 10_000, '{"a":' + "[" * 60_000),
        *('{"' * 32_000, "{" * 65_000, '{"a"' * 16_000, '{"a":"' + "x" * 65_000, '{"\\' * 20_000),
        *('{"a":1}' * 9_000, "```json\n" * 8_000, "```json{" * 8_000, '{ "' * 20_000),
        *('{"a":' + "9" * 65_000 + "}", '{"a":"' + "\ufdfa" * 65_000 + '"}', '"' * 65_000),
        '{"a":[' + ",".join(str((2**61 - 1) * k) for k in range(1, 3000)) + "]}",
        '{"a":' * 60 + "[" + "1," * 30_000 + "1]" + "}" * 60,
    ],
)
def test_the_longest_responses_take_no_time(response: str) -> None:
    """Nothing recurses, and no text is read more than a few times."""
    gold, judge = problem('{"a": [1, 2], "b": 1}'), verifier([{"name": "a", "set": True}])
    began = time.process_time()
    assert score(judge, response, gold) == 0
    assert score(judge, fenced(response)[-65_536:], gold) == 0
    assert time.process_time() - began < 3


@pytest.mark.parametrize(
    ("fields", "answer", "fault"),
    [
        ([], "fees", "the answer must be one JSON object in text, such as"),
        ([], '["fees"]', "the answer must be one JSON object"),
        ([], '{"a": 1, "a": 2}', "without repeated keys"),
        ([], '{"a": "' + "x" * 70_000 + '"}', "the answer must be one JSON object"),
        ([], '{"a":' * 10_000 + "1" + "}" * 10_000, "the answer must be one JSON object"),
        ([], "{}", "the answer is an object without fields"),
        ([], '{"a": "</think>"}', "the answer cannot be told from a response's layout"),
        (FIELDS, '{"category": "fees"}', "the answer has no field 'amount'"),
        ([{"name": "a.b"}], '{"a": 1}', "the answer has no field 'a.b'"),
        ([{"name": "a", "tolerance": 1}], '{"a": "1"}', "'a' has a tolerance, but the answer's is"),
        (
            [{"name": "a", "set": True}],
            '{"a": "1"}',
            "'a' is a set, but the answer's is not a list",
        ),
    ],
)
def test_an_answer_that_cannot_be_right_is_told(fields: object, answer: str, fault: str) -> None:
    """The fault names the field."""
    told = verifier(fields).fault(problem(answer))
    assert told and fault in told
    assert score(verifier(fields), fenced(answer)[-65_536:], problem(answer)) < 1


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ([{}], "fields.0.name: it is missing"),
        ([{"name": ""}], "fields.0.name: it is empty"),
        ([{"name": "a", "weight": 0}], "fields.0.weight: "),
        ([{"name": "a", "weight": "1"}], "fields.0.weight: "),
        ([{"name": "a", "tolerance": -1}], "fields.0.tolerance: "),
        ([{"name": "a", "set": 1}], "fields.0.set: "),
        ([{"name": "a", "set": True, "tolerance": 1}], "fields.0: a field has a tolerance or"),
        ([{"name": "a", "equals": True}], "fields.0.equals: there is no such field"),
        ([{"name": "a"}, {"name": "a", "weight": 2}], "fields: the field 'a' occurs twice"),
        ([{"name": str(n)} for n in range(101)], "fields: "),
        ([{}] * 1_000_000, "fields.0.name: "),
        ({"a": 1}, "fields: "),
    ],
)
def test_wrong_fields_are_named(fields: object, fault: str) -> None:
    """In settings and in a problem's metadata."""
    with pytest.raises(ValidationError) as refused:
        verifier(fields)
    assert first_fault(refused.value).startswith(fault)
    with pytest.raises(InvalidProblems, match="1: metadata: fields"):
        VERIFIERS.read("json").on(problem(fields=fields))


def test_a_problem_s_own_fields_outrank_the_run_s() -> None:
    """As all parameters that metadata may set."""
    own = problem(fields=[{"name": "category"}])
    assert score(verifier(), '{"category": "fees"}', own) == 1
    assert score("json", '{"category": "fees"}', problem()) == 0.25


TEXT = st.text('ab1{}[]"\\`:,.', max_size=5)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(-1e9, 1e9).map(lambda x: x + 0.5) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner),
    max_leaves=8,
)
OBJECTS = st.dictionaries(TEXT, VALUES, min_size=1, max_size=4)


def typed(value: Any) -> Any:
    """A value that only another of the same JSON type can equal."""
    if isinstance(value, dict):
        return {key: typed(each) for key, each in value.items()}
    if isinstance(value, list):
        return [typed(each) for each in value]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return ("number", Fraction(str(value))) if number else (type(value), value)


@given(
    gold=OBJECTS,
    other=OBJECTS,
    indent=st.sampled_from([None, 2]),
    escaped=st.booleans(),
)
def test_without_fields_the_score_is_the_share_of_equal_ones(
    gold: dict[str, Any], other: dict[str, Any], indent: int | None, escaped: bool
) -> None:
    """Held against Python's own values."""
    both = gold | other
    text = json.dumps(both, indent=indent, ensure_ascii=escaped)
    item = problem(json.dumps(gold))
    assert VERIFIERS.read("json").fault(item) is None
    right = sum(typed(both[key]) == typed(gold[key]) for key in gold)
    paid = [score("json", form, item) for form in (fenced(text), f"{{x}} {text}.")]
    assert paid == [pytest.approx(right / len(gold))] * 2
    assert (paid[0] == 1) == (right == len(gold))


@given(OBJECTS.map(json.dumps) | st.text(min_size=1, max_size=20))
def test_its_own_right_response_is_right_and_nothing_is_not(answer: str) -> None:
    """Whatever the answer is, unless it has said that it is faulty."""
    judge, item = VERIFIERS.read("json"), problem(answer)
    if judge.fault(item) is None:
        assert judge.score(judge.right_response(item), item) == 1
    assert judge.score("", item) == 0

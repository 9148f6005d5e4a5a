"""Prompts of messages, and the messages that a run puts before each prompt."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from pubswap_client.data.holdout import split
from pubswap_protocol.errors import InvalidProblems, first_fault
from pubswap_protocol.problems import Problem, parse_problem, problem_lines, prompts_digest
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.verifiers import score

SYSTEM = {"role": "system", "content": "Be terse."}
USER = {"role": "user", "content": "2 + 2 ="}
REPLY = {"role": "assistant", "content": "4"}
LAST = {"role": "user", "content": "And 3 + 3?"}
SHOT = {"prompt": "1 + 1 =", "answer": "It is 2."}


def line(prompt: Any) -> str:
    return json.dumps({"id": "a", "prompt": prompt, "answer": "6"})


def read(prompt: Any) -> Problem:
    return parse_problem(line(prompt), "mine.jsonl, line 3")


def test_messages_are_read_written_and_shown_alike() -> None:
    """A conversation keeps its roles in a file, and has one text for people."""
    problem = read([SYSTEM, USER, REPLY, LAST])
    assert json.loads(problem_lines([problem])) == json.loads(line([SYSTEM, USER, REPLY, LAST]))
    assert problem.text == (
        "[system]\nBe terse.\n\n[user]\n2 + 2 =\n\n[assistant]\n4\n\n[user]\nAnd 3 + 3?"
    )
    assert problem.question == "2 + 2 =\n\nAnd 3 + 3?"


def test_one_user_message_is_its_text() -> None:
    """So it is the same prompt to whoever compares prompts, and needs no chat template."""
    assert read([USER]) == read("2 + 2 =")


def test_a_text_is_hashed_as_before() -> None:
    """Held-out problems and digests of earlier versions stay; other messages are another prompt."""
    texts = [Problem(id=str(n), prompt=f"{n} + 1 =", answer="1") for n in range(5)]
    assert [problem.id for problem in split(texts, 2)[1]] == ["0", "3"]
    assert prompts_digest(texts[:1]) == (
        "blake3:10fd927d24060deecb74efc34f532464252c2037a3b138b9332a43ed13008411"
    )
    messages = read([SYSTEM, USER])
    for text in ("2 + 2 =", messages.text):  # which a prompt may also spell
        assert prompts_digest([messages]) != prompts_digest([read(text)])


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        (4, "it must be text, in quotes, or a list of messages"),
        ({"role": "user"}, "it must be text, in quotes, or a list of messages"),
        ("", "it is empty"),
        ([], "it has 0 messages; give 1 to 64"),
        ([USER] * 65, "it has 65 messages; give 1 to 64"),
        (["2 + 2 ="], "message 1 is not one"),
        ([USER, REPLY], "the last message is the assistant's, and must be the user's"),
        ([SYSTEM], "the last message is the system's, and must be the user's"),
        ([USER, SYSTEM, LAST], "message 2 is a system message, and only the first can be one"),
        ([SYSTEM, {"role": "user", "content": " \n"}], "message 2 is empty"),
        ([{"role": "user"}], "message 1 is empty"),
        ([{"role": "developer", "content": "x"}, USER], "message 1 has the role 'developer'"),
        ([{"content": "x"}], "message 1 has the role ''"),
        ([{"role": "tool", "content": "4"}, USER], "message 1 belongs to a tool, and tools are"),
        ([USER, {"role": "assistant", "content": None, "tool_calls": []}, LAST], "message 2 belon"),
        ([{"role": "user", "content": [{"type": "image"}]}], "message 1 has parts, such as images"),
        ([USER | {"name": "ann"}], "message 1 has the field 'name'"),
        ([SYSTEM | {"content": "x" * (1 << 20)}, USER], "its messages have 1,048,583 characters"),
        ("x" * ((1 << 20) + 1), "String should have at most 1048576 characters"),
    ],
)
def test_what_is_no_prompt_is_refused_in_one_sentence(prompt: Any, said: str) -> None:
    """With the line, the field, and the number of the message."""
    with pytest.raises(InvalidProblems) as caught:
        read(prompt)
    assert caught.value.detail.startswith(f"mine.jsonl, line 3: prompt: {said}")


def test_verifiers_read_what_the_user_says() -> None:
    """An echo of a formula in the question is wrong, and one in the system message is none."""
    asks = [SYSTEM | {"content": "Write fractions as 38/2."}, USER | {"content": "38 - 19 = ?"}]
    problem = Problem.model_validate({"id": "a", "prompt": asks, "answer": "19"})
    assert score("math", r"\boxed{19}", problem) == 1.0
    assert score("math", r"\boxed{38/2}", problem) == 1.0
    other = Problem(id="a", prompt="Half of 38: 38/2 = ?", answer="19")
    assert score("math", r"\boxed{38/2}", other) == 0.0


def test_a_run_puts_its_messages_before_each_prompt() -> None:
    """Behind a prompt's own system message, and before its own turns."""
    run = RunSettings.model_validate({"few_shot": [SHOT]})
    shots = [("user", "1 + 1 ="), ("assistant", "It is 2.")]
    asked = [("user", "2 + 2 ="), ("assistant", "4"), ("user", "And 3 + 3?")]

    def roles(run: RunSettings, prompt: Any) -> list[tuple[str, str]]:
        return [(each.role, each.content) for each in run.conversation(read(prompt).prompt)]

    assert roles(run, "2 + 2 =") == [*shots, ("user", "2 + 2 =")]
    whole = [("system", "Be terse."), *shots, *asked]
    assert roles(run, [SYSTEM, USER, REPLY, LAST]) == whole
    told = run.model_copy(update={"system_prompt": "Be terse."})
    assert roles(told, [USER, REPLY, LAST]) == whole
    assert RunSettings().conversation("2 + 2 =") == "2 + 2 ="


def test_a_run_refuses_messages_without_a_place() -> None:
    """Two system messages, and messages without a chat template."""
    with pytest.raises(InvalidProblems, match="has a system message, and the run has a system_pro"):
        RunSettings(system_prompt="Be kind.").conversation(read([SYSTEM, USER]).prompt)
    with pytest.raises(InvalidProblems, match="takes a chat template, and the run has"):
        RunSettings(chat_template="none").conversation(read([SYSTEM, USER]).prompt)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"system_prompt": " "}, "system_prompt: it is blank; write it, or leave it out"),
        ({"system_prompt": "a\0b"}, "system_prompt: String should match"),
        ({"few_shot": [{"prompt": "1 + 1 ="}]}, "few_shot.0.answer: it is missing"),
        ({"few_shot": [SHOT | {"answer": ""}]}, "few_shot.0.answer: it is blank"),
        ({"few_shot": [SHOT | {"id": "1"}]}, "few_shot.0.id: there is no such field"),
        ({"few_shot": [SHOT] * 65}, "few_shot: Tuple should have at most 64 items"),
        ({"system_prompt": "x" * 100_001}, "system_prompt: String should have at most 100000"),
        (
            {"system_prompt": "x" * 99_990, "few_shot": [SHOT]},
            "system_prompt and few_shot: 100,005 characters",
        ),
        (
            {"few_shot": [SHOT], "chat_template": "none"},
            "few_shot requires chat_template = 'auto'; or write it into the prompts",
        ),
    ],
)
def test_wrong_messages_of_a_run_are_named(values: dict[str, Any], said: str) -> None:
    """Each with its setting, before anything is trained."""
    with pytest.raises(ValidationError) as caught:
        RunSettings.model_validate(values)
    assert first_fault(caught.value).startswith(said)

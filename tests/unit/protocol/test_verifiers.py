"""The verdicts of each verifier."""

import time

import pytest

from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers import extract_answer, score, verifier_of, verifier_version
from pubswap_protocol.verifiers.choice import chosen_letter
from pubswap_protocol.verifiers.extract import stated
from pubswap_protocol.verifiers.registry import MAX_RESPONSE_CHARACTERS


def problem(answer: str, **fields: object) -> Problem:
    """A problem with this answer."""
    return Problem(id="1", prompt="?", answer=answer, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer> 4 </answer> Answer: 5", "4"),
        ("<answer>1</answer><answer>2</answer>", "2"),
        ("Answer: 3\nanswer: 4 \nthe end", "4"),
        ("The answer is: 7", "7"),
        (r"so \boxed{\frac{1}{2}} it is", r"\frac{1}{2}"),
        (r"\boxed{1} or \boxed{2", r"\boxed{1} or \boxed{2"),
        ("one\ntwo\n\n", "two"),
        ("", ""),
        ("**Answer: 7**", "7"),
        ("**Answer:**\n\n7", "7"),
        ("*Answer:*\n7", "7"),
        ("**Final Answer:**\n\n$$\n\\boxed{7}\n$$", "7"),
        ("**Final Answer:**\n\n**Answer:** 7", "7"),
        ("Final answer:\nThe answer is: 7", "7"),
        ("Answer:\n7, and not the answer: 8", "7, and not the answer: 8"),
        ("The answer is:\n\\[\n7\n\\]", "7"),
        ("Answer:\n```text\n7\n```", "7"),
        (r"The answer is: $\boxed{7}$", "7"),
        (r"<answer>\boxed{7}</answer>", "7"),
        ("Answer: $7$", "7"),
        (r"**Answer: \(7\).**", "7"),
        ("Answer: `7`", "7"),
        ("Answer: $7", "$7"),
        ("Answer: `6` or `7`", "`6` or `7`"),
        ("Answer: __init__", "__init__"),
        ("Answer: 7\nThis is the answer:", "7"),
        ("7\nSo the answer:\n", "So the answer:"),
        (r"\boxed{1}, \boxed{2}", "1, 2"),
        (r"\boxed{1} is less than \fbox {\{3}", r"\{3"),
        ("<think>Answer: 3</think>\nfour", "four"),
        ("<think>Answer: 3", ""),
        ("Answer: 3 <think> or", ""),
    ],
)
def test_the_answer_is_where_a_person_would_look(text: str, answer: str) -> None:
    """Tags take precedence over an answer line, that over a box, and a box over the last line."""
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("name", "response", "answer", "right"),
    [
        ("math", r"Thus \boxed{\frac{1}{2}}", "1/2", True),
        ("math", "Answer: 42", "42", True),
        ("math", "0.5", r"\frac{1}{2}", True),
        ("math", "The answer is $x^2+1$", "x^2+1", True),
        ("math", "The answer is $1+x^2$", "$x^2+1$", True),
        ("math", "Answer: 41", "42", False),
        ("math", "", "42", False),
        ("math", r"\frac{", "42", False),
        ("math", "no number", "42", False),
        ("choice", "Answer: C", "C", True),
        ("choice", "(C)", "C", True),
        ("choice", "The answer is C.", "C", True),
        ("choice", "The answer is: (C)", "C", True),
        ("choice", r"\boxed{C}", "C", True),
        ("choice", "C) aspirin", "C", True),
        ("choice", "Answer: c", "C", False),
        ("choice", "Answer: \u201cC\u201d", "C", True),
        ("choice", "Answer: \u2018C\u2019", "C", True),
        ("choice", "Answer: \u201cA\u201d or \u201cC\u201d", "A", False),
        ("choice", "Answer: C \u2705", "C", True),
        ("choice", "Answer: C \u2714\ufe0f", "C", True),
        ("choice", "Answer: C \u274c", "C", False),
        ("choice", "A \u2705 or C \u2705", "A", False),
        ("choice", "Answer: C. Beta blockers", "C", True),
        ("choice", "Answer: B", "C", False),
        ("choice", "A or C", "C", False),
        ("choice", "(A) or (C)", "C", False),
        ("choice", "The answer is a bit tricky.\nAnswer: C", "C", True),
        ("choice", "The answer is a bit tricky.\nAnswer: C", "A", False),
        ("choice", "The answer is a bacterial one, so C is best.\nAnswer: C", "C", True),
        ("choice", "The answer is I think C", "I", False),
        ("choice", "The answer is I think C.\nAnswer: C", "C", True),
        ("choice", "If the answer is D, then it fails.\nAnswer: C", "C", True),
        ("choice", "<think>The answer is A</think>\nAnswer: C", "C", True),
        ("choice", "<think>Answer: C", "C", False),
        ("choice", "Answer: Hepatitis B", "B", False),
        ("choice", "Answer: A bacterial infection", "A", False),
        ("choice", "It is hepatitis B", "B", False),
        ("choice", "**Answer:** C", "C", True),
        ("choice", "**Answer**: (C)", "C", True),
        ("choice", "### Answer:\n**C**", "C", True),
        ("choice", "Answer: `C`", "C", True),
        ("choice", "The answer is:\n\\[\n\\text{The answer is (C)}\n\\]", "C", True),
        ("choice", "Answer:\n\\[\nC \\text{ or } D\n\\]", "C", False),
        ("choice", "The answer is (C).\n\nFinal Answer:", "C", True),
        ("choice", r"Answer: $\boxed{\text{C}}$", "C", True),
        ("choice", "Answer: Option C", "C", True),
        ("choice", "Answer: C, because A and B are wrong", "C", True),
        ("choice", "Therefore, the correct option is **C**.", "C", True),
        ("choice", "The answer is C, not D.", "C", True),
        ("choice", "Answer: A\nNo.\nAnswer: C", "C", True),
        ("choice", "<answer>A</answer>\nAnswer: C", "C", True),
        ("choice", "The answer is A.\nAnswer: none of these", "A", False),
        ("choice", "The answer is C or D.", "C", False),
        ("choice", "The nearest answer is 81%. The answer is (C).", "C", True),
        ("choice", "The answer is (D), no. The answer is (C).", "D", False),
        ("choice", "The answer is (C).\nThe choice is hard. The answer is none.", "C", True),
        ("choice", r"Final Answer: The final answer is $\boxed{C}$", "C", True),
        ("choice", "**Answer: The most likely option is: C. Aspirin**", "C", True),
        ("choice", "Answer: The answer is C or D.", "C", False),
        ("choice", "Answer: The answer is a cold.", "A", False),
        ("choice", "Answer: A is wrong, and the answer is C", "C", False),
        ("choice", "Answer: C/D", "C", False),
        ("choice", "Answer: C-D", "C", False),
        ("choice", "Answer: (C) \u2013 (D).", "C", False),
        ("choice", "Answer: C \u2013 aspirin", "C", True),
        ("choice", "Answer: C \u2014 aspirin", "C", True),
        ("choice", "Answer: C - A selective blocker", "C", True),
        ("choice", "Answer: C \u2013 D-dimer", "C", True),
        ("choice", "Answer: C and D", "C", False),
        ("choice", "Answer: C (or D)", "C", False),
        ("choice", "Answer: **C** or **D**", "D", False),
        ("choice", r"\boxed{A}, \boxed{C}", "C", False),
        ("choice", "I do not know", "C", False),
        ("choice", "", "C", False),
        ("choice", "The answer is C because a stone falls.", "C", True),
        ("choice", "C is the correct answer.", "C", True),
        ("choice", r"So v = \boxed{17}. The answer is (C).", "C", True),
        ("choice", r"So v = \boxed{17}. The answer is (C) or (D).", "C", False),
        ("choice", "So the answer: sales are 65. The answer is (C).", "C", True),
        ("choice", "Answer: Let's think step by step. The answer is (C).", "C", True),
        ("choice", "Answer: C or D. The answer is C.", "C", False),
        ("choice", "Final Answer: The answer is ... C.", "C", True),
        ("choice", "The answer is, therefore, C.", "C", True),
        ("choice", "I would say C.", "C", True),
        ("choice", "I'd go with option C", "C", True),
        ("choice", "The answer would be C.", "C", True),
        ("choice", "The answer is C. The answer is C or D.", "C", False),
        ("choice", "Answer\uff1a\uff08\uff23\uff09", "C", True),
        ("choice", "Answer: C. Option A is incorrect because it is late.", "C", True),
        ("choice", "Answer: C. A beta blocker. A is wrong, so C.", "C", True),
        ("choice", "Answer: C, I think", "C", True),
        ("choice", "Answer: H. The answer is I.", "I", False),
        ("exact", "", " ", False),
        ("exact", "", "$ $", False),
        ("exact", "Answer:  forty  two ", "forty two", True),
        ("exact", "**Answer:** Paris", "Paris", True),
        ("exact", "<think>Answer: Rome</think>Paris", "Paris", True),
        ("exact", "<think>Answer: Paris", "Paris", False),
        ("exact", "<answer>Paris</answer>\nAnswer: Rome", "Rome", False),
        ("exact", "\uff14\uff12", "42", True),
        ("exact", "Answer: $x$", "$x$", True),
        ("exact", "Answer: `x`", "x", True),
        ("exact", "Forty two", "forty two", False),
        ("exact", "x" * (MAX_RESPONSE_CHARACTERS + 1), "x", False),
        ("reasoning_gym:chain_sum", "Steps: 1+1=2. Answer: 2", "2", True),
        ("reasoning_gym:chain_sum", "<think>Answer: 3</think>Answer: 2", "2", True),
        ("reasoning_gym:chain_sum", "<think>Answer: 2", "2", False),
        ("reasoning_gym:chain_sum", "Answer: 3", "2", False),
        ("reasoning_gym:chain_sum", "Answer: 2 apples", "2", False),
    ],
)
def test_verdicts(name: str, response: str, answer: str, right: bool) -> None:
    """The score is 1.0 or 0.0, and nothing in between."""
    assert score(name, response, problem(answer)) == float(right)


HEDGES = """
B|C  B+C  B -> C  B. C.  B.C  B? No, C  B, possibly C  B or maybe C  B. Or C  B, or C if pregnant
B. Aspirin or C. Ibuprofen  B (Aspirin), C (Ibuprofen)  B. Aspirin. C. Ibuprofen  B. Aspirin. No, C
B. Aspirin or c. Ibuprofen  B: Aspirin; C: Ibuprofen  B C  B; C  B & C  B C D  B but C is possible
B, A is also possible  B because of x, or C  B > C  B = C  B (C)  (B)(C)  (B), (C)  **B** / **C**
B then C  B not sure, C  B... C  B with C  B and also C  both B and C  B/c  B since C
B~C  B_C  B\\C  B, A too  B, I  B because it is true, C also  B is correct and C is correct  B!C
"""


@pytest.mark.parametrize("form", ["Answer: {}", "The answer is {}", r"\boxed{{{}}}", "I'd say {}"])
def test_a_hedge_is_never_paid(form: str) -> None:
    """It names no letter at all, wherever it stands and however its letters are joined."""
    hedges = [hedge for line in HEDGES.split("\n") for hedge in line.split("  ") if hedge]
    assert {hedge: chosen_letter(form.format(hedge)) for hedge in hedges} == dict.fromkeys(hedges)


def test_an_option_of_the_prompt_may_name_letters_itself() -> None:
    """Its text behind its letter is no second answer, but that of another option is."""
    prompt = "Which?\n\nA. Iron\nB. Vitamins A and D\n(C) A and B"
    for response in ("B. Vitamins A and D", "B (vitamins A and D)", "**B.** Vitamins A and D."):
        assert chosen_letter(f"Answer: {response}", prompt) == "B"
        assert chosen_letter(f"Answer: {response} or C", prompt) is None
        assert chosen_letter(f"Answer: {response}") is None
    assert chosen_letter("The answer is (C) A and B", prompt) == "C"
    assert chosen_letter("The answer is (B) A and B", prompt) is None
    assert chosen_letter("Answer: **C. Amphotericin B**", "Which?\nC. Amphotericin B") == "C"
    assert chosen_letter("Answer: C (Vitamin B deficiency)", "C) Vitamin B deficiency") == "C"


@pytest.mark.parametrize(
    "text",
    [
        "answer" + " " * 65536,
        "answer is " * 6553,
        "answer is A B " * 4681,
        "answer: " + "an " * 21000,
        "answer:" + "*\n" * 32000,
        "<answer>" * 8192,
        "<answer></answer>" * 3855,
        "\\boxed{" * 9362,
        "\\boxed{" * 8000 + "}" * 8000,
        "\\boxed{1}" + " " * 65000 + "\\boxed{2}",
        "".join(f"\\boxed{{{number}}}," for number in range(4500)),
        "answer: C" + " (" * 32000,
        "answer: C. " + "A, " * 21000,
        "answer: C. " + "or " * 21000,
        "answer: C. " + "\ufdfa" * 65000,
        "I would say " * 5400,
        "answer is $1$" + " ," * 32000,
        "answer:" + "$$\n```\n" * 9000,
        "answer:```" * 6553,
        "answer: \\(" + "\\x" * 32000,
    ],
    ids=lambda text: text[:16],
)
def test_no_response_is_read_for_long(text: str) -> None:
    """`exact` and `choice` have no time limit, so parsing must not be quadratic."""
    start = time.thread_time()
    for name in ("exact", "choice"):
        score(name, text, problem("A"))
    stated(text)
    assert time.thread_time() - start < 1


@pytest.mark.parametrize("name", ["oracle", "", "reasoning_gym:", "Math"])
def test_an_unknown_verifier_is_refused_with_the_list(name: str) -> None:
    """The message names the existing ones."""
    names = "use one of math, choice, exact, .*, reasoning_gym:<task>"
    with pytest.raises(InvalidSettings, match=names):
        verifier_of(name)
    with pytest.raises(InvalidSettings):
        score(name, "x", problem("x"))


@pytest.mark.parametrize("task", ["telepathy", "composite"])
def test_an_unknown_reasoning_gym_task_is_refused(task: str) -> None:
    """The message names the task, or `composite`, which is only made of others."""
    with pytest.raises(InvalidSettings, match=f"no task '{task}'"):
        score(f"reasoning_gym:{task}", "x", problem("x"))


def test_versions_name_the_rule_and_the_library() -> None:
    """Another version of a library may give other rewards."""
    assert verifier_version("exact") == "exact@10"
    assert verifier_version("math").startswith("math@10+1.")
    assert verifier_version("reasoning_gym:gcd").startswith("reasoning_gym:gcd@10+0.")

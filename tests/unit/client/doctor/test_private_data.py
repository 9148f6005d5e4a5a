"""The doctor's checks of the private problems."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pubswap_client.data.drawing import sample
from pubswap_client.data.golds import Score
from pubswap_client.doctor.facts import Facts
from pubswap_client.doctor.findings import Finding, Outcome
from pubswap_client.doctor.private_data import (
    check_answers,
    check_count,
    check_file,
)
from pubswap_client.policy.policy import Policy
from pubswap_client.settings import ClientSettings
from pubswap_protocol.errors import InvalidProblems, InvalidSettings
from pubswap_protocol.problems import Problem, read_problems, write_problems
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.verifiers import VerifierPool, score, verifier_of
from support.client.examined import facts_of


def numbered(count: int) -> list[Problem]:
    return [Problem(id=f"p{i}", prompt=f"{i} + 1 =", answer=str(i + 1)) for i in range(count)]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A file of forty faultless problems."""
    write_problems(tmp_path / "private.jsonl", numbered(40))
    return tmp_path / "private.jsonl"


def answering(problems: Sequence[Problem], default: str, score: Score, data: Path) -> Facts:
    """The facts for a check of these answers by `score`, in this process."""
    run = RunSettings.model_validate({"verifier": default})
    facts = facts_of(ClientSettings(data=data), run=run, problems=list(problems))
    facts.pool.score_many = score  # type: ignore[method-assign, assignment]
    return facts


def answers(problems: Sequence[Problem], default: str, data: Path) -> Finding:
    """Check answers with the real verifiers."""
    judged: Score = lambda name, cases: [score(p.verifier or name, t, p) for t, p in cases]  # noqa: E731
    return check_answers(answering(problems, default, judged, data))


def read(path: Path) -> tuple[Finding, Facts]:
    """The finding of a file, and the facts with it."""
    facts = facts_of(ClientSettings(data=path))
    return check_file(facts), facts


def test_a_good_file_is_well(data: Path) -> None:
    """It is readable, and has enough problems."""
    found, facts = read(data)
    assert found.outcome is Outcome.OK
    assert check_count(facts).outcome is Outcome.OK


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"id": "x", "prompt": "secret"}', "line 41: answer: it is missing"),
        ('{"id": "p4", "prompt": "secret", "answer": "5"}', "line 41: id 'p4' occurs twice"),
        ("secret", "line 41"),
    ],
)
def test_a_faulty_line_is_named_and_not_quoted(data: Path, line: str, said: str) -> None:
    """As by a start."""
    with data.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(InvalidProblems, match=said) as raised:
        read(data)
    assert "secret" not in raised.value.detail


def test_prompts_that_occur_twice_are_a_warning(data: Path) -> None:
    """The message has the ids of both problems, and no prompt."""
    copy = '{"id": "copy", "prompt": "4 + 1 =", "answer": "5"}\n'
    data.write_text(data.read_text() + copy + "\n\n")
    finding, _ = read(data)
    assert finding.outcome is Outcome.WARNING
    assert "1 problems have the prompt of another: copy of p4" in finding.found


def test_too_few_problems_are_refused_and_few_are_a_warning(tmp_path: Path) -> None:
    """A step takes eight distinct ones, besides those held out."""
    for count, held_out in ((7, 0), (9, 2)):
        facts = facts_of(ClientSettings(holdout=held_out), problems=numbered(count))
        with pytest.raises(InvalidProblems, match=r"holds 7 problems.*; a step takes 8"):
            check_count(facts)
    found = check_count(facts_of(problems=numbered(9)))
    assert found.outcome is Outcome.WARNING
    assert found.found == "9 problems; a step takes 8"


def test_encoding_is_the_policy_s(policy: Policy, data: Path) -> None:
    """So the doctor measures the same lengths as training."""
    from pubswap_client.policy.tokenizer import PromptTokenizer

    tokenizer = PromptTokenizer(Path(policy.model.config._name_or_path))
    for problem in read_problems(data)[:3]:
        assert tokenizer.encode(problem.prompt, chat=True) == policy.encode(problem.prompt)


@pytest.mark.parametrize("unknown", ["maths", "reasoning_gym:no_such_task"])
def test_an_unknown_verifier_is_named(data: Path, unknown: str) -> None:
    """An unknown task of reasoning-gym counts as one."""
    problems = [*numbered(3), Problem(id="a", prompt="?", answer="1", verifier=unknown)]
    with pytest.raises(InvalidSettings, match=unknown.rpartition(":")[2]):
        answers(problems, "math", data)


@pytest.mark.parametrize(
    ("verifier", "answer"),
    [
        ("math", "4"),
        ("math", r"\frac{1}{2}"),
        ("math", r"$\frac{1}{2}$"),
        ("math", r"The answer is \boxed{x^2 + 1}"),
        ("math", "(1, 2]"),
        ("math-verify", r"\frac{1}{2}"),
        ("math-verify", "$4$"),
        ("math-string", r"\frac{1}{2}"),
        ("math-string", "4"),
        ("choice", "B"),
        ("choice", "(c)"),
        ("exact", "two words"),
        ("exact", "two\nlines"),
        ("exact", "$x$"),
        ("exact", r"so \boxed{x}"),
        ("reasoning_gym:chain_sum", "12"),
        ("reasoning_gym:spell_backward", "olleh"),
    ],
)
def test_good_answers_are_read(verifier: str, answer: str) -> None:
    """A response with the answer in its usual closing is right, and an empty one is wrong."""
    problem = Problem(id="p", prompt="?", answer=answer, verifier=verifier)
    assert score(verifier, verifier_of(verifier).right_response(problem), problem) == 1
    assert score(verifier, "", problem) == 0


@pytest.mark.parametrize("rule", [lambda text: True, lambda text: False])
def test_a_verifier_that_accepts_anything_or_nothing_is_found(
    rule: Callable[[str], bool], data: Path
) -> None:
    """Accepting its own reference answer is not enough to pass."""
    problems = [Problem(id="p", prompt="?", answer=r"2\sqrt{3}")]
    judged: Score = lambda _, cases: [float(rule(text)) for text, _ in cases]  # noqa: E731
    assert check_answers(answering(problems, "math", judged, data)).outcome is Outcome.FAILURE


def test_answers_that_cannot_be_matched_are_counted_and_named(data: Path) -> None:
    """One of many is a warning; a large share is a failure."""
    problems = [Problem(id=f"c{i}", prompt=f"{i}?", answer="A") for i in range(40)]
    spoilt = Problem(id="spoilt", prompt="?", answer="B. Paris")
    assert answers(problems, "choice", data).outcome is Outcome.OK
    found = answers([*problems, spoilt], "choice", data)
    assert found.outcome is Outcome.WARNING
    assert "1 are unusable (checked all 41). choice: " in found.found and "(spoilt)" in found.found
    found = answers([problems[0], spoilt], "choice", data)
    assert found.outcome is Outcome.FAILURE
    assert "Paris" not in found.found + found.advice


def test_answers_are_verified_in_the_pool(data: Path) -> None:
    """As for responses, there is a time limit; a task without its metadata accepts nothing."""
    countdown = Problem(id="odd", prompt="?", answer="3+4", verifier="reasoning_gym:countdown")
    problems = [*read_problems(data)[:3], countdown]
    with VerifierPool() as pool:
        found = check_answers(facts_of(ClientSettings(data=data), pool=pool, problems=problems))
    assert "1 are unusable" in found.found and "(odd)" in found.found


def test_a_large_set_is_sampled_the_same_each_time() -> None:
    """The problems are distinct and in file order; another purpose gets another sample."""
    problems = numbered(150)
    chosen = sample(problems, 100, "doctor")
    assert len({problem.id for problem in chosen}) == 100
    assert sorted(chosen, key=problems.index) == chosen == sample(problems, 100, "doctor")
    assert chosen != sample(problems, 100, "audit", "members")
    assert sample(problems[:10], 100, "doctor") == problems[:10]

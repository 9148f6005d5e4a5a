"""The doctor's checks of the private problems."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pubswap_client.data.drawing import sample
from pubswap_client.doctor.findings import Finding, Status
from pubswap_client.doctor.private_data import (
    check_answers,
    check_count,
    check_file,
    check_verifiers,
    survey,
)
from pubswap_client.policy.policy import Policy
from pubswap_protocol.errors import InvalidProblems
from pubswap_protocol.problems import Problem, write_problems
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.verifiers import VerifierPool, score, verifier_of


def numbered(count: int) -> list[Problem]:
    return [Problem(id=f"p{i}", prompt=f"{i} + 1 =", answer=str(i + 1)) for i in range(count)]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A file of forty faultless problems."""
    write_problems(tmp_path / "private.jsonl", numbered(40))
    return tmp_path / "private.jsonl"


def answers(problems: Sequence[Problem], default: str) -> Finding:
    """Check answers with the real verifiers, in this process."""
    return check_answers(
        problems,
        len(problems),
        default,
        lambda name, cases: [score(p.verifier or name, text, p) for text, p in cases],
        str,
    )[0]


def test_a_good_file_is_well(data: Path) -> None:
    """It is readable, and has enough problems."""
    found = survey(data)
    assert check_file(found).status is Status.OK
    assert check_count(found, RunSettings()).status is Status.OK


def test_every_fault_is_found_and_none_quotes_a_problem(data: Path) -> None:
    """The faulty lines are named; the good lines around them are kept."""
    with data.open("a") as file:
        file.write('\n{"id": "x", "prompt": "secret"}\nnot json\n')
    found = survey(data)
    finding = check_file(found)
    assert finding.status is Status.FAILURE
    assert "3 lines" in finding.found
    assert "line 41, line 42, line 43" in finding.advice
    assert "secret" not in "".join(found.faults)
    assert len(found.problems) == 40


def test_ids_that_occur_twice_are_named(data: Path) -> None:
    """The message has their lines."""
    data.write_text(data.read_text() + data.read_text().splitlines()[4] + "\n")
    finding = check_file(survey(data))
    assert finding.status is Status.FAILURE
    assert "line 41 (p4)" in finding.found


def test_prompts_that_occur_twice_are_a_warning(data: Path) -> None:
    """The message has the ids of both problems, and no prompt."""
    copy = '{"id": "copy", "prompt": "4 + 1 =", "answer": "5"}\n'
    data.write_text(data.read_text() + copy + "\n\n")
    finding = check_file(survey(data))
    assert finding.status is Status.WARNING
    assert "1 problems have the prompt of another: copy of p4" in finding.found


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    """The message names the path."""
    with pytest.raises(InvalidProblems, match=r"none\.jsonl"):
        survey(tmp_path / "none.jsonl")
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\xff")
    with pytest.raises(InvalidProblems, match="cannot be read"):
        survey(tmp_path / "bytes.jsonl")


@pytest.mark.parametrize(("count", "status"), [(0, "failure"), (7, "failure"), (9, "warning")])
def test_too_few_problems_are_a_failure_and_few_a_warning(
    tmp_path: Path, count: int, status: str
) -> None:
    """A step takes eight distinct ones."""
    write_problems(tmp_path / "few.jsonl", numbered(count))
    assert check_count(survey(tmp_path / "few.jsonl"), RunSettings()).status == status


def test_encoding_is_the_policy_s(policy: Policy, data: Path) -> None:
    """So the doctor measures the same lengths as training."""
    from pubswap_client.policy.tokenizer import PromptTokenizer

    tokenizer = PromptTokenizer(Path(policy.model.config._name_or_path))
    for problem in survey(data).problems[:3]:
        assert tokenizer.encode(problem.prompt, chat=True) == policy.encode(problem.prompt)


def test_unknown_verifiers_are_named_with_their_problems() -> None:
    """An unknown task of reasoning-gym counts as an unknown verifier."""
    problems = [
        Problem(id="a", prompt="?", answer="1", verifier="maths"),
        Problem(id="b", prompt="?", answer="1", verifier="reasoning_gym:no_such_task"),
        Problem(id="c", prompt="?", answer="1"),
        Problem(id="d", prompt="?", answer="1", verifier="exact"),
    ]
    found, usable = check_verifiers(problems, "math")
    assert found.status is Status.FAILURE
    assert "a, b" in found.found
    assert "no_such_task" in found.found
    assert [problem.id for problem in usable] == ["c", "d"]
    assert check_verifiers(problems[2:], "math")[0].status is Status.OK


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
def test_a_verifier_that_accepts_anything_or_nothing_is_found(rule: Callable[[str], bool]) -> None:
    """Accepting its own reference answer is not enough to pass."""
    problems = [Problem(id="p", prompt="?", answer=r"2\sqrt{3}")]
    found, _ = check_answers(
        problems, 1, "math", lambda _, cases: [float(rule(text)) for text, _ in cases], str
    )
    assert found.status is Status.FAILURE


def test_answers_that_cannot_be_matched_are_counted_and_named() -> None:
    """One of many is a warning; a large share is a failure."""
    problems = [Problem(id=f"c{i}", prompt="?", answer="A") for i in range(40)]
    spoilt = Problem(id="spoilt", prompt="?", answer="B. Paris")
    assert answers(problems, "choice").status is Status.OK
    found = answers([*problems, spoilt], "choice")
    assert found.status is Status.WARNING
    assert "1 are not read by their own verifier: spoilt (checked all 41)" in found.found
    found = answers([problems[0], spoilt], "choice")
    assert found.status is Status.FAILURE
    assert "one letter" in found.advice
    assert "Paris" not in found.found + found.advice


def test_answers_are_verified_in_the_pool(data: Path) -> None:
    """As for responses, there is a time limit; a task without its metadata accepts nothing."""
    countdown = Problem(id="odd", prompt="?", answer="3+4", verifier="reasoning_gym:countdown")
    problems = [*survey(data).problems[:3], countdown]
    with VerifierPool() as pool:
        found, faults = check_answers(problems, len(problems), "math", pool.score_many, str)
    assert "1 are not read by their own verifier: odd" in found.found
    assert [fault.problem.id for fault in faults] == ["odd"]


def test_nothing_to_verify_is_skipped() -> None:
    """It does not pass as OK."""
    assert answers([], "math").status is Status.SKIPPED


def test_a_large_set_is_sampled_the_same_each_time() -> None:
    """The problems are distinct and in file order; another purpose gets another sample."""
    problems = numbered(150)
    chosen = sample(problems, 100, "doctor")
    assert len({problem.id for problem in chosen}) == 100
    assert sorted(chosen, key=problems.index) == chosen == sample(problems, 100, "doctor")
    assert chosen != sample(problems, 100, "audit", "members")
    assert sample(problems[:10], 100, "doctor") == problems[:10]

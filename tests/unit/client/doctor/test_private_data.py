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
    check_verifiers,
)
from pubswap_client.doctor.problem_file import ProblemFile
from pubswap_client.policy.policy import Policy
from pubswap_client.settings import ClientSettings
from pubswap_protocol.errors import InvalidProblems
from pubswap_protocol.problems import Problem, write_problems
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.verifiers import VerifierPool, score, verifier_of
from support.client.examined import facts_of, file_of


def numbered(count: int) -> list[Problem]:
    return [Problem(id=f"p{i}", prompt=f"{i} + 1 =", answer=str(i + 1)) for i in range(count)]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A file of forty faultless problems."""
    write_problems(tmp_path / "private.jsonl", numbered(40))
    return tmp_path / "private.jsonl"


def answering(problems: Sequence[Problem], default: str, score: Score) -> Facts:
    """The facts for a check of these answers by `score`, in this process."""
    facts = facts_of(run=RunSettings.model_validate({"verifier": default}))
    facts.pool.score_many = score  # type: ignore[method-assign, assignment]
    facts.file, facts.usable = file_of(problems), list(problems)
    return facts


def answers(problems: Sequence[Problem], default: str) -> Finding:
    """Check answers with the real verifiers."""
    judged: Score = lambda name, cases: [score(p.verifier or name, t, p) for t, p in cases]  # noqa: E731
    return check_answers(answering(problems, default, judged))


def read(path: Path) -> tuple[Finding, Facts]:
    """The finding of a file, and the facts with it."""
    facts = facts_of(ClientSettings(data=path))
    return check_file(facts), facts


def test_a_good_file_is_well(data: Path) -> None:
    """It is readable, and has enough problems."""
    found, facts = read(data)
    assert found.outcome is Outcome.OK
    assert check_count(facts).outcome is Outcome.OK


def test_every_fault_is_found_and_none_quotes_a_problem(data: Path) -> None:
    """The faulty lines are named; the good lines around them are kept."""
    with data.open("a") as file:
        file.write('\n{"id": "x", "prompt": "secret"}\nnot json\n')
    finding, facts = read(data)
    found = facts.file
    assert found is not None
    assert finding.outcome is Outcome.FAILURE
    assert "3 lines" in finding.found
    assert "line 41, line 42, line 43" in finding.advice
    assert "secret" not in "".join(found.faults)
    assert len(found.problems) == 40


def test_ids_that_occur_twice_are_named(data: Path) -> None:
    """The message has their lines."""
    data.write_text(data.read_text() + data.read_text().splitlines()[4] + "\n")
    finding, _ = read(data)
    assert finding.outcome is Outcome.FAILURE
    assert "line 41 (p4)" in finding.found


def test_prompts_that_occur_twice_are_a_warning(data: Path) -> None:
    """The message has the ids of both problems, and no prompt."""
    copy = '{"id": "copy", "prompt": "4 + 1 =", "answer": "5"}\n'
    data.write_text(data.read_text() + copy + "\n\n")
    finding, _ = read(data)
    assert finding.outcome is Outcome.WARNING
    assert "1 problems have the prompt of another: copy of p4" in finding.found


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    """The message names the path."""
    with pytest.raises(InvalidProblems, match=r"none\.jsonl"):
        ProblemFile.read(tmp_path / "none.jsonl")
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\xff")
    with pytest.raises(InvalidProblems, match="cannot be read"):
        ProblemFile.read(tmp_path / "bytes.jsonl")


@pytest.mark.parametrize(("count", "status"), [(0, "failure"), (7, "failure"), (9, "warning")])
def test_too_few_problems_are_a_failure_and_few_a_warning(
    tmp_path: Path, count: int, status: str
) -> None:
    """A step takes eight distinct ones."""
    write_problems(tmp_path / "few.jsonl", numbered(count))
    assert check_count(read(tmp_path / "few.jsonl")[1]).outcome == status


def test_encoding_is_the_policy_s(policy: Policy, data: Path) -> None:
    """So the doctor measures the same lengths as training."""
    from pubswap_client.policy.tokenizer import PromptTokenizer

    tokenizer = PromptTokenizer(Path(policy.model.config._name_or_path))
    for problem in ProblemFile.read(data).problems[:3]:
        assert tokenizer.encode(problem.prompt, chat=True) == policy.encode(problem.prompt)


def test_unknown_verifiers_are_named_with_their_problems() -> None:
    """An unknown task of reasoning-gym counts as an unknown verifier."""
    problems = [
        Problem(id="a", prompt="?", answer="1", verifier="maths"),
        Problem(id="b", prompt="?", answer="1", verifier="reasoning_gym:no_such_task"),
        Problem(id="c", prompt="?", answer="1"),
        Problem(id="d", prompt="?", answer="1", verifier="exact"),
    ]
    facts = facts_of(file=file_of(problems))
    found, usable = check_verifiers(facts), facts.usable
    assert usable is not None
    assert found.outcome is Outcome.FAILURE
    assert "a, b" in found.found
    assert "no_such_task" in found.found
    assert [problem.id for problem in usable] == ["c", "d"]
    assert check_verifiers(facts_of(file=file_of(problems[2:]))).outcome is Outcome.OK


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
    found = check_answers(
        answering(problems, "math", lambda _, cases: [float(rule(text)) for text, _ in cases])
    )
    assert found.outcome is Outcome.FAILURE


def test_answers_that_cannot_be_matched_are_counted_and_named() -> None:
    """One of many is a warning; a large share is a failure."""
    problems = [Problem(id=f"c{i}", prompt="?", answer="A") for i in range(40)]
    spoilt = Problem(id="spoilt", prompt="?", answer="B. Paris")
    assert answers(problems, "choice").outcome is Outcome.OK
    found = answers([*problems, spoilt], "choice")
    assert found.outcome is Outcome.WARNING
    assert "1 are not read by their own verifier: spoilt (checked all 41)" in found.found
    found = answers([problems[0], spoilt], "choice")
    assert found.outcome is Outcome.FAILURE
    assert "one letter" in found.advice
    assert "Paris" not in found.found + found.advice


def test_answers_are_verified_in_the_pool(data: Path) -> None:
    """As for responses, there is a time limit; a task without its metadata accepts nothing."""
    countdown = Problem(id="odd", prompt="?", answer="3+4", verifier="reasoning_gym:countdown")
    problems = [*ProblemFile.read(data).problems[:3], countdown]
    with VerifierPool() as pool:
        facts = facts_of(pool=pool, file=file_of(problems), usable=problems)
        found, faults = check_answers(facts), facts.unread
    assert faults is not None
    assert "1 are not read by their own verifier: odd" in found.found
    assert [fault.problem.id for fault in faults] == ["odd"]


def test_nothing_to_verify_is_skipped() -> None:
    """It does not pass as OK."""
    assert answers([], "math").outcome is Outcome.SKIPPED


def test_a_large_set_is_sampled_the_same_each_time() -> None:
    """The problems are distinct and in file order; another purpose gets another sample."""
    problems = numbered(150)
    chosen = sample(problems, 100, "doctor")
    assert len({problem.id for problem in chosen}) == 100
    assert sorted(chosen, key=problems.index) == chosen == sample(problems, 100, "doctor")
    assert chosen != sample(problems, 100, "audit", "members")
    assert sample(problems[:10], 100, "doctor") == problems[:10]

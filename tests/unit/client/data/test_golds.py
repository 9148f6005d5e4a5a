"""Reference answers that no response can earn, in `prepare` and `doctor`."""

import json
import logging
from pathlib import Path

import pytest

from pubswap_client.data.drawing import sample
from pubswap_client.data.fault_list import fault_list
from pubswap_client.data.golds import contradictions, text_fault, too_long, unread
from pubswap_client.data.manifest import read_manifest
from pubswap_client.data.prepare import prepare
from pubswap_client.data.spec import DataSpec
from pubswap_client.doctor.findings import Finding, Outcome
from pubswap_client.doctor.private_data import check_answers
from pubswap_client.settings import ClientSettings
from pubswap_protocol.errors import InvalidProblems
from pubswap_protocol.problems import Problem, is_blank, parse_problems, write_problems
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.verifiers import VerifierPool, score
from pubswap_protocol.verifiers.confined.worker import Scored
from support.client.examined import facts_of


def problem(answer: str, verifier: str | None = "math", name: str = "p") -> Problem:
    return Problem(id=name, prompt=f"{name}?", answer=answer, verifier=verifier)


def test_an_answer_longer_than_a_response_is_named() -> None:
    """Of an answer with a box, what is in the box counts."""
    problems = [problem("x" * size, name=f"p{size}") for size in range(1, 25)]
    problems.append(problem("As we have seen, it is \\boxed{7}."))
    long = too_long(problems, 16, len)
    assert [fault.problem.id for fault in long] == [f"p{size}" for size in range(17, 25)]
    assert long[0].reason == "it has 17 tokens, and a response at most 16"


@pytest.mark.parametrize(
    "answer", [" ", "\n\t", "\u200b", "\ufeff \u2060", "$ $", r"\(\)", "\u3164"]
)
def test_an_answer_without_anything_to_see_is_blank(answer: str, tmp_path: Path) -> None:
    """A file with one is refused by its line; a set that was accepted before is still read."""
    assert is_blank(answer)
    line = json.dumps({"id": "1", "prompt": "?", "answer": answer})
    with pytest.raises(InvalidProblems, match="line 1: answer: it is blank"):
        parse_problems(line)
    assert parse_problems(line, extra="ignore")[0].answer == answer
    row = tmp_path / "own.jsonl"
    row.write_text(json.dumps({"id": "1", "prompt": "a", "answer": answer}) + "\n")
    with pytest.raises(InvalidProblems, match="line 1: answer: it is blank"):
        prepare(DataSpec(source="jsonl", from_=row, verifier="exact"), tmp_path / "out")


@pytest.mark.parametrize("answer", ["0", ".", "-", r"\emptyset", "$x$", "\u2205"])
def test_short_answers_are_not_blank(answer: str) -> None:
    """Any sign counts."""
    assert not is_blank(answer)


@pytest.mark.parametrize(
    ("verifier", "answer", "reason"),
    [
        ("math", "It is 4+4 = <<4+4=8>>8.\n#### 8", "worked solution"),
        ("math", "#### 8", "worked solution"),
        ("math", "We add them and get 12.", "worked solution"),
        ("math", "She has 5 apples left.", "worked solution"),
        ("math", "The total is 42.", "worked solution"),
        ("math", "So 7", "worked solution"),
        ("math", "5 + 3 = 8, so the answer is 8.", "worked solution"),
        ("math-string", "Answer: 12", "worked solution"),
        ("math", "\frac{1}{2}", "control character"),
        ("math", "3\times 4", "control character"),
        ("math", "\times 4", "control character"),
        ("math", "\x08inom{5}{2}", "control character"),
        ("math", "\rho", "control character"),
        ("math", "x \neq 2", "control character"),
        ("exact", "\frac{1}{2}", "control character"),
        ("math", "NaN", "NaN"),
        ("exact", "nan", "NaN"),
        (None, "NaN", "NaN"),
        (None, "\u200b", "blank"),
        ("math", "AC", "several letters"),
        ("math", "A, C and D", "several letters"),
        ("choice", "AC", "several letters"),
        ("choice", "(A), (C)", "several letters"),
        ("choice", "B. Paris", "no letter"),
        ("choice", "K", "no letter"),
    ],
)
def test_faults_of_a_text_are_named(verifier: str | None, answer: str, reason: str) -> None:
    """They need no verifier, which would find the text equal to itself."""
    assert reason in str(text_fault(problem(answer, verifier), None))


@pytest.mark.parametrize(
    ("verifier", "answer"),
    [
        ("math", answer)
        for answer in [
            "36 minutes", "9.5 square feet.", "10 miles per hour", "5 dollars and 20 cents",
            "d = 5, M = (1, 2)", "21 (books)", "1,066 million", "4:30 p.m.", r"\text{June 20}",
            "all real numbers", "no solution", "sin theta = 3", "log 2 + log 3", "1 or -1", "B",
            "\\begin{pmatrix} 1 \\\\\n2 \\end{pmatrix}", r"The answer is \boxed{x^2 + 1}", "5\n",
        ]
    ]
    + [("choice", "(b)."), ("exact", "AC"), ("exact", "two\r\nlines\tof 2"), (None, "We get 12.")],
)  # fmt: skip
def test_usual_answers_have_no_fault(verifier: str | None, answer: str) -> None:
    """Units, names and LaTeX are no sentences."""
    assert text_fault(problem(answer, verifier), None) is None


@pytest.mark.parametrize(
    ("prompt", "fault"),
    [
        ("What is \frac{1}{2}?", True),
        ("3\times 4 =", True),
        ("\beta + 1", True),
        ("\text{cm}", True),
        ("page 1\fpage 2", False),
        ("\tan apple\ttwo\r\n", False),
        (r"\frac{1}{2} \times", False),
    ],
)
def test_a_prompt_with_a_lost_backslash_is_found(prompt: str, fault: bool) -> None:
    """What is left of the command follows the control character; a page break is none."""
    asked = Problem(id="p", prompt=prompt, answer="1")
    assert bool(unread([asked], None, lambda name, cases: [])) == fault


def test_the_same_prompt_with_another_answer_is_found() -> None:
    """All of them, because any may be wrong; another notation of the same text is no other one."""
    texts = [("1 + 1 =", "2"), ("1 +  1 =", "$2$"), ("1 + 2 =", "3"), ("1 + 2 =", "4")]
    problems = [Problem(id=str(n), prompt=p, answer=a) for n, (p, a) in enumerate(texts)]
    assert [fault.problem.id for fault in contradictions(problems)] == ["2", "3"]
    tasks = [problem.model_copy(update={"metadata": {"n": 1}}) for problem in problems]
    assert contradictions(tasks) == []


def test_unread_answers_name_their_verifier(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does the warning about a verifier that was cut off."""

    def judge(name: str, cases: list[tuple[str, Problem]]) -> list[float]:
        return [score(p.verifier or name, text, p) for text, p in cases]

    odd = problem("3+4", "reasoning_gym:countdown")
    problems = [problem("AC", name="a"), problem("0", name="b"), odd]
    faults = unread([*problems, problem("x y", None, "c")], None, judge)  # type: ignore[arg-type]
    assert [(fault.problem.id, fault.verifier) for fault in faults] == [
        ("a", "math"),
        ("p", "reasoning_gym:countdown"),
    ]
    with VerifierPool() as pool:
        monkeypatch.setattr(pool, "score", lambda *_: Scored(0.0, 5.0, cut_off=True))
        with caplog.at_level(logging.WARNING):
            pool.score_many("exact", [("7", odd)])
    assert (
        "reasoning_gym:countdown took too long, or ended its process, on a response to p"
        in caplog.text
    )


def rows_file(folder: Path, answers: dict[int, str], count: int = 60) -> Path:
    rows = [
        {"id": n, "prompt": f"{n} + 1 =", "answer": answers.get(n, str(n + 1)), "topic": "sums"}
        for n in range(count)
    ]
    path = folder / "own.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def listed(out: Path) -> dict[str, str]:
    rows = map(json.loads, fault_list(out).read_text().splitlines())
    return {row["where"]: f"{row['verifier']}: {row['reason']}" for row in rows}


def test_prepare_lists_all_unusable_answers_beside_the_split(tmp_path: Path) -> None:
    """A few are left out; too many end it. Either way all are in one file with their lines."""
    out = tmp_path / "deep" / "split"
    bad = dict.fromkeys(range(0, 60, 3), "We add them and get 12.")
    spec = DataSpec(source="jsonl", from_=rows_file(tmp_path, bad), verifier="math", clients=2)
    with pytest.raises(
        InvalidProblems, match=r"worked solution.* All 20 are in .*unusable"
    ) as error:
        prepare(spec, out)
    assert str(fault_list(out)) in error.value.detail
    assert "by math" in error.value.detail
    assert not out.exists()
    reason = "math: it is a worked solution, not an answer"
    assert list(listed(out).items()) == [(f"line {n + 1}", reason) for n in bad]
    rows_file(tmp_path, {7: "NaN", 30: "So 7"})
    prepare(spec, out)
    assert list(listed(out)) == ["line 8", "line 31"]
    assert sum(left.rows for left in read_manifest(out).left_out) == 2
    rows_file(tmp_path, {})
    prepare(spec, tmp_path / "deep" / "other")
    assert not fault_list(tmp_path / "deep" / "other").exists()


def test_prepare_leaves_out_a_file_s_contradictions(tmp_path: Path) -> None:
    """They are not hidden as repetitions, and the list has the lines of both."""
    path = rows_file(tmp_path, {})
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    more = [{**rows[4], "id": 60, "answer": "9"}, {**rows[5], "id": 61}]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *more]))
    prepare(DataSpec(source="jsonl", from_=path, verifier="math", clients=2), tmp_path / "out")
    assert sorted(listed(tmp_path / "out")) == ["line 5", "line 61"]
    left = {left.reason: left.rows for left in read_manifest(tmp_path / "out").left_out}
    assert left == {
        "answer: the same prompt has another answer elsewhere": 2,
        "the same question again": 1,
    }


def test_prepare_does_not_strip_what_is_left_of_a_backslash(tmp_path: Path) -> None:
    """A form feed is white space, and without it the answer would be `rac{1}{2}`."""
    path = rows_file(tmp_path, {3: "\frac{1}{2}", 9: "\times 4"})
    prepare(DataSpec(source="jsonl", from_=path, verifier="math", clients=2), tmp_path / "out")
    assert sorted(listed(tmp_path / "out")) == ["line 10", "line 4"]


def examined(folder: Path, problems: list[Problem], verifier: str = "exact") -> Finding:
    """The doctor's finding of the answers in a file of these problems."""
    path, run = folder / "private.jsonl", RunSettings.model_validate({"verifier": verifier})
    write_problems(path, problems)
    return check_answers(facts_of(ClientSettings(data=path), run=run, problems=problems))


def test_the_doctor_finds_the_same_faults_and_lists_them(tmp_path: Path) -> None:
    """It names reasons and ids, and no answer; the list goes once there is nothing to list."""
    listing = fault_list(tmp_path / "private.jsonl")
    problems = [problem("4", name=f"p{n}") for n in range(60)]
    bad = problem("Then we get 12", name="bad")
    other = Problem(id="other", prompt="p3?", answer="5")
    finding = examined(tmp_path, [*problems, bad, other])
    assert finding.outcome is Outcome.WARNING
    assert "3 are unusable (checked all 62)" in finding.found
    assert "math: it is a worked solution, not an answer (bad)" in finding.found
    assert "the same prompt has another answer elsewhere (other)" in finding.found
    assert "get 12" not in finding.found + finding.advice
    assert str(listing) in finding.found
    assert list(listed(tmp_path / "private.jsonl")) == ["line 4", "line 61", "line 62"]
    assert examined(tmp_path, [problem("AC", None)], "choice").outcome is Outcome.FAILURE
    assert examined(tmp_path, problems).outcome is Outcome.OK
    assert not listing.exists()


def test_the_doctor_reads_the_text_of_every_answer(tmp_path: Path) -> None:
    """A verifier, which takes longer, reads those of a sample."""
    problems = [problem("4", None, name=f"p{n}") for n in range(1200)]
    seen = {each.id for each in sample(problems, 1000, "doctor")}
    left_out = next(n for n, each in enumerate(problems) if each.id not in seen)
    problems[left_out] = problem("Then we get 12", name="bad")
    finding = examined(tmp_path, problems)
    assert finding.outcome is Outcome.WARNING
    assert "1 are unusable (checked 1000 of 1200)" in finding.found and "(bad)" in finding.found


def test_a_list_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    """Private data may lie in a folder that is only read."""
    listing = fault_list(tmp_path / "private.jsonl")
    listing.with_name(listing.name + ".tmp").mkdir()
    assert "could not be listed" in examined(tmp_path, [problem("So 7", name="bad")]).found

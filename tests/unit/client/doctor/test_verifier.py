"""`pubswap verifier test`: what it finds of good and of bad verifiers."""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pubswap_client.doctor import verifier as rules
from pubswap_client.doctor.findings import Outcome
from pubswap_client.doctor.verifier import Case, cases_of, findings, read_responses
from pubswap_client.recipes.recipe import verifier_settings
from pubswap_protocol.cli import build_app
from pubswap_protocol.errors import InvalidProblems, InvalidSettings, PubSwapError
from pubswap_protocol.problems import Problem
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.verifiers import VerifierPool, verifier_of
from pubswap_protocol.verifiers.confined.worker import Scored
from support.client.commands import Ended
from support.wheels import EXAMPLE, example, forget, pip, use

EXACT = verifier_of("exact")
PROBLEMS = [Problem(id=f"p{n}", prompt=f"Say {n}.", answer=str(n // 2)) for n in range(6)]
RUN = RunSettings(verifier=EXACT)

Scorer = Callable[[str, Problem], float]


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    forget()
    yield
    forget()


def right(text: str, problem: Problem) -> float:
    """A good verifier of `exact`'s right responses."""
    return float(text == EXACT.right_response(problem))


def failed(scorer: Scorer, **settings: object) -> set[str]:
    """The names of the checks that fail."""

    def judge(pool: VerifierPool, cases: Sequence[Case], _: str) -> list[Scored]:
        return [Scored(scorer(*case), 0.001) for case in cases]

    found = findings(cases_of(PROBLEMS, EXACT), RUN.model_copy(update=settings), judge)
    assert all(finding.advice for finding in found.values() if not finding.good)
    return {name for name, finding in found.items() if finding.outcome is Outcome.FAILURE}


def test_each_check_finds_its_own_fault() -> None:
    """And a good verifier fails none."""
    ticks = count()
    assert failed(right) == set()
    assert failed(lambda text, p: 0.9 * right(text, p)) == {"reference answers"}
    assert failed(lambda text, p: right(text, p) or 0.1 * (not text)) == {"empty responses"}
    assert failed(lambda text, p: float(bool(text))) == {"other problems' answers"}
    again = {"the same again, in another order", "the same with 4 workers"}
    assert failed(lambda text, p: right(text, p) or (next(ticks) % 7) / 100 * bool(text)) == again


def test_another_s_answer_may_be_paid_in_part() -> None:
    """Up to the score from which a response is correct; an equal answer is no other's."""

    def half(text: str, problem: Problem) -> float:
        return right(text, problem) or 0.5 * bool(text)

    assert failed(half) == set()
    assert failed(half, correct_at=0.5) == {"other problems' answers"}
    cases = cases_of(PROBLEMS, EXACT)
    assert len(cases.others) == 6
    assert not any(text == EXACT.right_response(problem) for text, problem in cases.others)
    assert cases_of(PROBLEMS[:2], EXACT).others == []  # their answers are equal


def test_a_verifier_that_hangs_is_given_up() -> None:
    """After a few responses, because each costs seconds."""
    tried = []

    def judge(pool: VerifierPool, cases: Sequence[Case], _: str) -> list[Scored]:
        scored: list[Scored] = []
        while not rules.given_up(scored):
            scored.append(Scored(0.0, 5.0, cut_off=True))
        tried.append(len(scored))
        return scored

    (finding,) = findings(cases_of(PROBLEMS, EXACT), RUN, judge).values()
    assert finding.outcome is Outcome.FAILURE
    assert "line 1 (p0)" in finding.found
    assert tried == [5]


def test_problems_that_name_another_verifier_are_left_out() -> None:
    """If all do, the message names it; a large set is thinned out evenly."""
    own = PROBLEMS[0].model_copy(update={"verifier": "math"})
    assert next(p.id for _, p in cases_of([own, *PROBLEMS[1:]], EXACT).golds) == "p1"
    with pytest.raises(InvalidProblems, match="such as math"):
        cases_of([own], EXACT)
    many = [PROBLEMS[0].model_copy(update={"id": f"p{n}"}) for n in range(2500)]
    tried = [problem.id for _, problem in cases_of(many, EXACT).golds]
    assert (len(tried), tried[:2]) == (834, ["p0", "p3"])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"id": "p9", "response": ""}', "line 2: no problem has the id 'p9'"),
        ('{"id": "p1"}', "line 2: response: it is missing"),
        ('{"id": "p1", "response": "", "answer": ""}', "line 2: answer"),
        ("[]", "line 2"),
    ],
)
def test_a_wrong_line_of_responses_is_named(tmp_path: Path, line: str, reason: str) -> None:
    """With what to do."""
    path = tmp_path / "responses.jsonl"
    path.write_text('{"id": "p1", "response": "x"}\n' + line + "\n")
    with pytest.raises(InvalidProblems, match=reason):
        read_responses(path, PROBLEMS)


def called(*words: str | Path) -> Ended:
    """The command's status and output; raises what it would explain in a sentence."""
    done = CliRunner().invoke(
        build_app(), ["verifier", "test", *map(str, words)], env={"COLUMNS": "300"}
    )
    if isinstance(done.exception, PubSwapError):
        raise done.exception
    return Ended(done.exit_code, done.output)


def test_the_example_passes(complaints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its package, the policy's line, the checks, and the scores of given responses are printed."""
    use(monkeypatch, complaints)
    problems, responses = EXAMPLE / "problems.jsonl", EXAMPLE / "responses.jsonl"
    ended = called("plugin:complaints", "--data", problems, "--responses", responses)
    assert ended.status == 0, ended.output
    assert "plugin:complaints is complaint-triage 1.0.0, digest " in ended.output
    assert 'policy.toml: verifiers = ["plugin:complaints@complaint-triage-1.0.0-' in ended.output
    for found in ("all 6 score 1", "all 6 score 0", "none of 6 is correct", "18 scores are the"):
        assert found in ended.output
    assert "mean score 0.700, 2 of 4 correct" in ended.output


@pytest.mark.parametrize("more", ["", '[model]\nsource = "m"\n[data]\npublic = "p.jsonl"\n'])
def test_a_file_gives_the_verifier_with_its_parameters(tmp_path: Path, more: str) -> None:
    """A run file or the first line of one; here one that does not read the answers: status 1."""
    parts = '[{ verifier = "choice" }, { verifier = "exact", weight = 3.0 }]'
    (tmp_path / "run.toml").write_text(
        f'verifier = {{ name = "weighted", parts = {parts} }}\n{more}'
    )
    lines = [problem.model_dump_json(exclude_defaults=True) for problem in PROBLEMS]
    (tmp_path / "p.jsonl").write_text("\n".join(lines))
    ended = called(tmp_path / "run.toml", "--data", tmp_path / "p.jsonl")
    assert ended.status == 1
    assert "6 of 6 score less than 1: line 1 (p0), line 2 (p1)" in ended.output


def test_what_a_verifier_raises_is_told_once(
    complaints: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Its message, beside the lines; no line for each response."""
    use(monkeypatch, complaints)
    (tmp_path / "p.jsonl").write_text('{"id": "1", "prompt": "?", "answer": "{}"}')
    ended = called("plugin:complaints", "--data", tmp_path / "p.jsonl")
    assert ended.status == 1
    found = "line 1 (1); it raised ValueError: the reference answer has no category"
    assert found in ended.output
    assert "scored 0" not in "".join(capfd.readouterr())


def test_a_working_tree_is_tested_but_gets_no_line_for_a_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so."""
    tree = example(tmp_path)
    pip("install", "--no-build-isolation", "--target", tmp_path / "site", "--editable", tree)
    use(monkeypatch, tmp_path / "site", tree / "src")
    ended = called("plugin:complaints", "--data", EXAMPLE / "problems.jsonl")
    assert ended.status == 0, ended.output
    assert "installed from a working tree, which only simulations accept" in ended.output
    assert "policy.toml" not in ended.output


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rounds = 2\n", "it has no `verifier`"),
        ('verifier = "exakt"\n', "exakt"),
        ('verifier = "exact"\ncorrect_at = 2.0\n', "correct_at"),
    ],
)
def test_a_file_with_no_usable_verifier_names_the_key(tmp_path: Path, text: str, said: str) -> None:
    """In one sentence, with the file."""
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(InvalidSettings, match=re.escape(said)) as raised:
        verifier_settings(tmp_path / "run.toml")
    assert "run.toml" in raised.value.detail


@pytest.mark.parametrize(
    ("verifier", "data", "kind"),
    [
        ("nothing", EXAMPLE / "problems.jsonl", InvalidSettings),
        ("plugin:nothing", EXAMPLE / "problems.jsonl", InvalidSettings),
        ("none.toml", EXAMPLE / "problems.jsonl", InvalidSettings),
        ("exact", "none.jsonl", InvalidProblems),
    ],
)
def test_names_and_files_that_are_none(
    verifier: str, data: str | Path, kind: type[PubSwapError]
) -> None:
    """A sentence, before anything is scored."""
    with pytest.raises(kind):
        called(verifier, "--data", data)

"""The doctor's trial step, and its report."""

import contextlib
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from pubswap_client.daemon import reporters
from pubswap_client.data.holdout import split
from pubswap_client.demo.demos import MODEL
from pubswap_client.distributed.launch import load_policy
from pubswap_client.doctor import trial as trying
from pubswap_client.doctor.examination import examine
from pubswap_client.doctor.facts import Facts
from pubswap_client.doctor.findings import (
    Checklist,
    Finding,
    Outcome,
    failure,
    of_error,
    ok,
    skipped,
    warning,
)
from pubswap_client.doctor.trial import check_trial, try_step
from pubswap_client.settings import ClientSettings, VllmSettings
from pubswap_client.training.metrics import StepMetrics
from pubswap_client.training.privacy import PrivateDraws
from pubswap_protocol.command_line.amounts import duration_text, first_few
from pubswap_protocol.command_line.progress_bar import next_stage, progress_bar
from pubswap_protocol.errors import InvalidSettings, StaleAdapter
from pubswap_protocol.messages import RunState, RunView
from pubswap_protocol.model import model_card
from pubswap_protocol.problems import Problem, write_problems
from pubswap_protocol.settings import (
    MembersSettings,
    PrivacySettings,
    RunSettings,
)
from pubswap_protocol.tensors.adapter import initial_adapter
from pubswap_protocol.verifiers import VerifierPool
from support.client.examined import facts_of
from support.vllm.fake_vllm import fake_vllm

TRIAL = StepMetrics(
    loss=0.0,
    kl=0.0,
    clip_share=0.0,
    reward=0.4,
    zero_variance_share=0.0,
    response_tokens=6.0,
    tokens=64 * 6,
    seconds=10.0,
    grad_norm=0.0,
    cut_share=0.25,
    sampling=8.5,
    verifying=0.5,
    prompts_sampled=8,
)
Score = Callable[[Sequence[tuple[str, Problem]]], list[float]]


@pytest.fixture
def view(tiny_qwen3: Path, run_settings: RunSettings) -> RunView:
    """A run on the tiny model."""
    return RunView(
        id="r",
        name="run",
        state=RunState.OPEN,
        paused=False,
        round=0,
        settings=run_settings,
        model=model_card(tiny_qwen3, run_settings.lora, "model", None),
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


def scored_by(scorer: Score, settings: ClientSettings) -> Facts:
    pool = SimpleNamespace(score_many=lambda _, cases: scorer(cases))
    return facts_of(settings, pool=pool)


def trying_on(model: Path, problems: Sequence[Problem]) -> dict[str, Any]:
    return {"process_group": None, "model": model, "problems": problems, "run": "r"}


def test_a_step_is_made_on_the_initial_adapter_and_timed(
    view: RunView,
    tiny_qwen3: Path,
    problems: list[Problem],
    even_scorer: Score,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each part is timed, and each stage is reported."""
    told: list[str] = []
    settings = ClientSettings(device="cpu", state=tmp_path / "state")
    policy = load_policy(settings, tiny_qwen3, view.model, view.settings)
    facts = scored_by(even_scorer, settings)
    monkeypatch.setattr(facts, "stage", told.append)
    trial = try_step(facts, policy, **trying_on(tiny_qwen3, problems))
    changed = policy.adapter()
    start = initial_adapter(view.model.layout, view.settings.seed)
    assert any(not np.array_equal(changed[name], start[name]) for name in start)
    assert 0 < trial.verifying < trial.sampling < trial.seconds
    assert 1 <= trial.response_tokens <= 12
    assert 0 <= trial.cut_share <= 1
    assert sum("sampling 3 x 4 responses" in line for line in told) == 1
    assert list(tmp_path.iterdir()) == []


def test_an_empty_draw_is_drawn_again(
    view: RunView,
    tiny_qwen3: Path,
    problems: list[Problem],
    even_scorer: Score,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is likely with privacy and few prompts per step, and an empty step measures nothing."""
    private = view.settings.model_copy(update={"privacy": PrivacySettings(epsilon=50.0)})
    settings, draws = ClientSettings(device="cpu", state=tmp_path / "state"), iter([[], [], [0, 2]])
    monkeypatch.setattr(PrivateDraws, "batch", lambda *_: next(draws, [0, 2]))
    policy = load_policy(settings, tiny_qwen3, view.model, private)
    trial = try_step(scored_by(even_scorer, settings), policy, **trying_on(tiny_qwen3, problems))
    assert trial.prompts_sampled == 2
    assert trial.tokens == pytest.approx(8 * trial.response_tokens)
    assert trial.sampling > trial.verifying > 0


def test_replicas_of_another_model_fail_the_trial_and_keep_nothing(
    view: RunView,
    tiny_qwen3: Path,
    problems: list[Problem],
    even_scorer: Score,
    tmp_path: Path,
) -> None:
    """Log-probabilities are compared as in training; the shared folder is left as it was."""
    with fake_vllm() as fake:
        vllm = VllmSettings(urls=(fake.url,), adapter_dir=tmp_path)
        settings = ClientSettings(engine="vllm-server", device="cpu", vllm=vllm)
        policy = load_policy(settings, tiny_qwen3, view.model, view.settings)
        with pytest.raises(StaleAdapter, match="another base model"):
            try_step(scored_by(even_scorer, settings), policy, **trying_on(tiny_qwen3, problems))
        assert fake.adapters == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cut_share": 0.9}, "grpo.max_response_tokens"),
        ({"reward": 0.0}, "easier"),
        ({"reward": 1.0}, "harder"),
    ],
)
def test_a_step_that_teaches_nothing_is_a_warning(changes: dict[str, float], words: str) -> None:
    """Its responses are cut off, all wrong, or all right."""
    assert check_trial(TRIAL, ClientSettings(), RunSettings()).outcome is Outcome.OK
    found = check_trial(replace(TRIAL, **changes), ClientSettings(), RunSettings())
    assert found.outcome is Outcome.WARNING
    assert words in found.advice


def test_the_time_of_a_round_is_that_of_its_steps() -> None:
    """Of the member's own number, if the run lets it make fewer."""
    run = RunSettings(local_steps=12, members=MembersSettings(fewest_steps=2))
    for own, said in (
        ({}, "12 such steps, as in a round, take 2 min"),
        (
            {"round_steps": 3},
            "3 such steps, as in a round, take 30 s",
        ),
    ):
        assert said in check_trial(TRIAL, ClientSettings(**own), run).found


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.81, "0.8 s"),
        (51, "51 s"),
        (2040, "34 min"),
        (18360, "5.1 h"),
        (172_800, "2 d"),
    ],
)
def test_durations_are_readable(seconds: float, text: str) -> None:
    """The unit fits the duration."""
    assert duration_text(seconds) == text


def findings_of(settings: ClientSettings, run: RunView | None = None) -> dict[str, Finding]:
    """What is found of a member without a membership, in this run."""
    with VerifierPool() as pool, progress_bar(Console(file=io.StringIO())) as progress:
        return dict(examine(Facts(settings, progress, pool, run=run)).findings)


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"round_steps": 1}, "accepts only updates of all 2"),
        ({"rank": 1}, "rank = 1 is not allowed"),
        ({"track": ("wandb",)}, "pip install wandb"),
    ],
)
def test_settings_that_would_prevent_a_start_fail(
    view: RunView, own: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run refuses them, or a package is not installed."""
    monkeypatch.setattr(reporters, "find_spec", lambda name: None)
    found = findings_of(ClientSettings(device="cpu", model=str(tmp_path), **own), view)
    assert found["settings"].outcome is Outcome.FAILURE
    assert words in found["settings"].found + found["settings"].advice


def test_one_failure_does_not_stop_what_does_not_depend_on_it(tmp_path: Path) -> None:
    """Without a membership the run is unknown, but data and device are still checked."""
    write_problems(
        tmp_path / "d.jsonl", [Problem(id="1", prompt="?", answer="A", verifier="choice")]
    )
    found = findings_of(
        ClientSettings(state=tmp_path / "none", data=tmp_path / "d.jsonl", device="cpu")
    )
    assert found["membership"].outcome is Outcome.FAILURE
    assert "pubswap client enroll" in found["membership"].advice
    for name in ("token and run", "policy", "memory", "packed path", "trial step"):
        assert found[name].outcome is Outcome.SKIPPED
    for name in ("device", "private data"):
        assert found[name].outcome is Outcome.OK


def test_the_trial_step_takes_no_held_out_problem(
    view: RunView, tiny_qwen3: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not count them either, because with privacy.epsilon the noise depends on the number
    trained on.
    """
    private = [Problem(id=f"p{n}", prompt=f"{n} + 1 =", answer=str(n + 1)) for n in range(9)]
    write_problems(tmp_path / "private.jsonl", private)
    tried: list[Sequence[Problem]] = []

    def step(*_: Any, problems: Sequence[Problem], **__: Any) -> StepMetrics:
        tried.append(problems)
        return TRIAL

    monkeypatch.setattr(trying, "try_step", step)
    own: dict[str, Any] = {"data": tmp_path / "private.jsonl", "holdout": 4}
    found = findings_of(ClientSettings(device="cpu", model=str(tiny_qwen3), **own), view)
    assert found["trial step"].good
    assert tried == [split(private, 4)[0]]


def test_processes_that_do_not_end_fail_the_trial(
    view: RunView, tiny_qwen3: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a step that was made."""

    @contextlib.contextmanager
    def ending_badly(_: ClientSettings) -> Iterator[None]:
        yield
        raise RuntimeError("a process hangs")

    private = [Problem(id=f"p{n}", prompt=f"{n} + 1 =", answer=str(n + 1)) for n in range(9)]
    write_problems(tmp_path / "private.jsonl", private)
    monkeypatch.setattr(trying, "open_process_group", ending_badly)
    monkeypatch.setattr(trying, "try_step", lambda *_, **__: TRIAL)
    own: dict[str, Any] = {"data": tmp_path / "private.jsonl"}
    found = findings_of(ClientSettings(device="cpu", model=str(tiny_qwen3), **own), view)
    assert found["packed path"].good
    assert "a process hangs" in found["trial step"].found


def test_prompts_over_the_limit_are_named_and_nothing_is_tried(
    view: RunView, tiny_qwen3: Path, tmp_path: Path
) -> None:
    """The finding gives line and id, as a start would, and quotes no prompt."""
    private = [Problem(id=f"p{n}", prompt=f"{n} + 1 =", answer=str(n + 1)) for n in range(9)]
    private[4] = Problem(id="long", prompt="secret " * 2000, answer="2")
    write_problems(tmp_path / "private.jsonl", private)
    own: dict[str, Any] = {"data": tmp_path / "private.jsonl"}
    found = findings_of(ClientSettings(device="cpu", model=str(tiny_qwen3), **own), view)
    assert found["prompt lengths"].outcome is Outcome.FAILURE
    said = found["prompt lengths"].found + found["prompt lengths"].advice
    assert "line 5 (long: " in said and "Shorten or remove them" in said and "secret" not in said
    assert found["trial step"].outcome is Outcome.SKIPPED


def test_no_data_and_no_model_leave_little_to_check(tmp_path: Path) -> None:
    """Skipped checks say what they need."""
    found = findings_of(ClientSettings(state=tmp_path, device="cpu"))
    assert "--data private.jsonl" in found["private data"].advice
    for name in ("chat template", "number of problems", "prompt lengths", "answers"):
        assert found[name].outcome is Outcome.SKIPPED
        assert "it needs" in found[name].found


def test_a_check_that_raises_fails_alone(view: RunView, tmp_path: Path) -> None:
    """For instance if transformers cannot read the tokenizer; the other checks continue."""
    for file in MODEL.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "tokenizer.json").write_text("{}")
    run = view.model_copy(update={"model": model_card(tmp_path, view.settings.lora, "m", None)})
    found = findings_of(ClientSettings(state=tmp_path, model=str(tmp_path), device="cpu"), run)
    assert found["chat template"].outcome is Outcome.FAILURE
    assert found["prompt lengths"].outcome is Outcome.SKIPPED
    assert found["device"].outcome is Outcome.OK


def test_a_report_is_healthy_unless_something_failed() -> None:
    """The table says so in words."""
    good = {"one": ok("[red]well"), "two": skipped("one")}
    findings = good | {"three": failure("bad", "mend")}
    report = Checklist(findings)
    assert not report.healthy
    assert Checklist(good).healthy
    console = Console(file=io.StringIO(), width=100)
    console.print(report.rendered())
    text = console.file.getvalue()
    for words in ("✓ ok", "[red]well", "- skipped", "✗ failure", "mend", "1 failed, 0 warnings"):
        assert words in text


def test_what_a_coordinator_says_moves_no_cursor_in_a_report() -> None:
    """For instance its version, or the name of the base model."""
    said = "answers: pubswap 1\x1b[1A\x1b[2K"
    out = io.StringIO()
    console = Console(file=out, width=200, force_terminal=True)
    console.print(Checklist({"coordinator": failure(said, said)}).rendered())
    assert "answers: pubswap 1" in out.getvalue()
    assert "\x1b[1A" not in out.getvalue() and "\x1b[2K" not in out.getvalue()


def test_a_narrow_terminal_cuts_no_setting_s_name_in_a_report() -> None:
    """A name that is wider than its column wraps."""
    console = Console(file=io.StringIO(), width=80)
    long = warning("9 of 10 are cut", "Ask the operator for a larger grpo.max_response_tokens")
    console.print(Checklist({"private data": long}).rendered())
    text = console.file.getvalue()
    assert "…" not in text and "Nothing failed, 1 warning." in text


def test_errors_become_findings_with_something_to_do() -> None:
    """Our errors give their detail as advice, others their type."""
    assert of_error(InvalidSettings("Set y.")).advice == "Set y."
    assert of_error(InvalidSettings("No y."), "Set y.").found == "No y."
    assert "KeyError" in of_error(KeyError("k")).found
    assert of_error(KeyError("k"), "Do z.").advice == "Do z."
    assert first_few(range(7)) == "0, 1, 2, 3, 4 and 2 more"


def test_a_terminal_shows_a_bar_and_a_log_shows_lines() -> None:
    """A terminal shows one stage at a time; a log gets a line for each."""
    plain, terminal = io.StringIO(), io.StringIO()
    with progress_bar(Console(file=plain)) as progress:
        next_stage(progress, "reading")
        task = next_stage(progress, "measuring", 2)
        assert list(progress.track([1, 2], 2, task_id=task)) == [1, 2]
    assert plain.getvalue() == "reading ...\nmeasuring ...\n"
    with progress_bar(Console(file=terminal, force_terminal=True, width=80)) as progress:
        next_stage(progress, "reading")
        next_stage(progress, "measuring")
        progress.refresh()
        assert [task.description for task in progress.tasks] == ["measuring"]
    assert "measuring" in terminal.getvalue()

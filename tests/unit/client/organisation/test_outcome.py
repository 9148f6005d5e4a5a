"""A run's outcome as its organisation sees it."""

import logging
import re
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pubswap_client.coordinator import retry
from pubswap_client.coordinator.retry import retrying
from pubswap_client.demo.demos import MODEL
from pubswap_client.operator.adapter_folder import Format, take_adapter, which_adapter
from pubswap_client.organisation import outcome
from pubswap_client.organisation.outcome import evaluated
from pubswap_client.organisation.report import MemberReport
from pubswap_client.organisation.summary import lines, page
from pubswap_client.state.history import HeldOutScore, RoundFigures
from pubswap_client.state.status import DaemonStatus
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import BaseModelMismatch, InvalidSettings, Unreachable, WrongState
from pubswap_protocol.messages import Evaluation, Membership, Role, RoundSummary, RunState, WholeRun
from pubswap_protocol.model import model_card
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import encode_adapter, initial_adapter

SETTINGS = RunSettings(rounds=3)
CARD = model_card(MODEL, SETTINGS.lora, "org/<b>base", "main")


def ended(
    *scores: float | None, state: RunState = RunState.FINISHED, topic: str = "sums"
) -> WholeRun:
    """A run in which the base model and each round got these scores."""

    def evaluation(score: float | None) -> Evaluation | None:
        by_topic = {topic: score, "choice": 0.5}
        return score and Evaluation(pass_at_1=score, by_topic=by_topic, problems=8, seconds=10)  # type: ignore[return-value, arg-type]

    rounds = [
        RoundSummary(round=number, adapter=digest_of(b"x"), evaluation=evaluation(score))
        for number, score in enumerate(scores)
    ]
    return WholeRun(
        id="r1",
        name="consortium",
        state=state,
        paused=False,
        round=len(scores) - 1,
        settings=SETTINGS,
        model=CARD,
        created_at=datetime.now(UTC),
        rounds=rounds,
    )


def test_the_outcome_is_reported_relative_to_the_base_model() -> None:
    """Overall, by topic, and the best round if it is not the last."""
    assert list(lines(ended(0.25, 0.75, 0.5))) == [
        "pass@1 0.250 → 0.500 (+0.250) from the base model to round 2, on 8 problems "
        "(95 %: 0.22 to 0.78); best 0.750 after round 1.",
        "  choice: 0.500 → 0.500 (+0.000)",
        "  sums: 0.250 → 0.500 (+0.250)",
    ]
    assert "Round 2 is not evaluated yet" in list(lines(ended(0.25, 0.75, None)))[-1]
    assert "no evaluator" in " ".join(lines(ended(None, None)))
    assert "no evaluator" in " ".join(lines(ended(0.25, None)))


def test_an_evaluator_that_keeps_up_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its earlier rounds decide how long, and the log says so once; one that never evaluated is
    not waited for, nor is a cancelled run.

    The coordinator is asked only a few times, however long that takes.
    """
    clock = [0.0]

    def pause(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(outcome, "time", SimpleNamespace(sleep=pause, monotonic=lambda: clock[0]))

    def waited(*answers: WholeRun) -> tuple[float, WholeRun]:
        clock[0] = 0.0
        left = list(answers)
        run = evaluated(lambda: left.pop(0) if left[1:] else left[0])
        return clock[0], run

    late, whole = ended(0.25, 0.5, None), ended(0.25, 0.5, 0.75)
    caplog.set_level(logging.INFO)
    assert waited(whole) == (0, whole)
    assert not caplog.messages
    assert waited(late, late, whole) == (10, whole)  # an evaluation takes 10 s
    assert caplog.messages == ["Waiting for the last evaluation, 25 s at most."]
    assert waited(late)[0] == 30  # 5 + 2 * 10 s, and up to the next poll
    assert waited(ended(None, None, None))[0] == 0
    assert waited(ended(0.25, None, state=RunState.CANCELLED))[0] == 0


def test_a_run_that_was_read_is_reported_without_the_coordinator(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All but the last evaluation is known when the coordinator goes."""
    monkeypatch.setattr(outcome, "time", SimpleNamespace(sleep=lambda _: None, monotonic=lambda: 0))
    late, answers = ended(0.25, 0.5, None), 0

    def read_run() -> WholeRun:
        nonlocal answers
        answers += 1
        if answers > 2:
            raise Unreachable("The coordinator is gone.")
        return late

    assert evaluated(read_run) == late
    said = "The coordinator is gone. The last evaluation is missing below."
    assert caplog.messages[-1:] == [said]


def test_the_outcome_outlasts_a_restart_of_the_coordinator(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A coordinator that is away for a minute does not cost an organisation its adapter."""
    pauses: list[float] = []
    monkeypatch.setattr(retry, "time", SimpleNamespace(sleep=pauses.append))
    monkeypatch.setattr(retry.random, "uniform", lambda low, high: (low + high) / 2)

    def away() -> None:
        raise Unreachable("no coordinator")

    def client(*args: Any) -> Any:
        retrying(away, args[-1])

    monkeypatch.setattr(outcome, "member_client", client)
    monkeypatch.setattr(outcome, "load_membership", lambda state: SimpleNamespace(membership=None))
    outcome.conclude(tmp_path)
    assert 60 < sum(pauses) < 120


class Tags(HTMLParser):
    """Collects the tags that a browser would find."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.found.append(tag)


def paged(
    run: WholeRun,
    name: str,
    history: Sequence[RoundFigures],
    scores: Sequence[HeldOutScore] = (),
    daemon: DaemonStatus | None = None,
) -> str:
    """The page of a member that has this history."""
    member = Membership(run="r1", run_name="r", name=name, role=Role.CLIENT, token="secret")
    return page(run, MemberReport(member, None, daemon, history, scores), Path("my state"))


def test_a_summary_has_figures_and_plots_and_no_scripts() -> None:
    """Names and topics are escaped; the curve has a point for each step."""
    figures = RoundFigures(
        run="r1",
        round=1,
        start=digest_of(b""),
        at=datetime.now(UTC),
        steps=3,
        rewards=[0.25, None, 0.75],
        reward=0.5,
        loss=None,
        kl=1e-3,
        clip_share=0.0,
        zero_variance_share=0.0,
        response_tokens=12.0,
        tokens=9,
        seconds=130.0,
        waited=3.0,
    )
    run = ended(0.25, 0.5, None, topic="<script>alert(1)</script>")
    text = paged(run, "hospital-a", [figures])
    assert set(Tags(text).found) <= {
        *("html", "meta", "title", "style", "main", "h1", "h2", "p"),
        *("div", "table", "tr", "th", "td"),
        *("svg", "line", "polyline", "text", "code"),
    }
    assert "width=device-width" in text, "a phone would show the page at desktop width"
    assert text.count("<table>") == text.count('tabindex="0" role="group"') == 2
    assert "&lt;script&gt;" in text and "org/&lt;b&gt;base" in text
    assert "<td>0.250</td><td>0.500</td><td>+0.250</td>" in text and "<td>2.2 min</td>" in text
    curves = re.findall(r'<polyline points="([^"]+)"', text)
    points = [[tuple(map(float, at.split(","))) for at in curve.split()] for curve in curves]
    assert [len(each) for each in points] == [2, 2]
    assert all(one[0][0] < one[1][0] and one[0][1] > one[1][1] for one in points)
    assert "(late)" not in text
    assert "Updates averaged in the last round: 0." in text
    assert "<code>pubswap client audit show --state &#39;my state&#39;</code>" in text
    assert "secret" not in text and "since enrolment" not in text
    sent = DaemonStatus(run="r1", at=figures.at, steps=3, sent_bytes=12_300_000)
    assert "12.3 MB sent, 0 bytes received since" in paged(run, "a", [], daemon=sent)
    late = figures.model_copy(update={"late": True})
    assert "<td>1 (late)</td>" in paged(run, "hospital-a", [late])
    assert "Not measured." in paged(ended(None, None), "a", [])
    base = HeldOutScore(
        run="r1",
        round=0,
        adapter=digest_of(b""),
        at=figures.at,
        pass_at_1=0.25,
        problems=64,
        digest=digest_of(b"64"),
        seconds=1.0,
    )
    scores = [base, base.model_copy(update={"round": 1, "pass_at_1": 0.375})]
    with_own = paged(run, "hospital-a", [figures], scores)
    assert "0.250 → 0.375 (+0.125) from round 0 to round 1, on 64" in with_own
    assert with_own.count("<polyline") == text.count("<polyline") + 1
    # Scores of an earlier file, and of rounds that were repeated since, do not count.
    others = [base.model_copy(update={"digest": digest_of(b"others"), "pass_at_1": 0.9})]
    undone = [one.model_copy(update={"round": one.round + 1}) for one in scores]
    assert paged(run, "hospital-a", [figures], [*others, base, *undone, scores[1]]) == with_own
    many = figures.model_copy(update={"rewards": [0.5, 0.25] * 50_000})
    assert len(paged(run, "a", [many])) < 50_000


def test_an_adapter_is_written_whole_or_not_at_all_and_replaces_nothing(tmp_path: Path) -> None:
    """The default is a finished run's last adapter; for a run in progress, the round must be
    named.
    """
    data = encode_adapter(CARD.layout, initial_adapter(CARD.layout, 0))
    asked: list[str] = []

    class Api:
        def adapter_of_round(self, _: str, which: str, max_bytes: int) -> tuple[int, bytes]:
            assert len(data) <= max_bytes
            asked.append(which)
            return (2 if which == "final" else int(which)), data

    api: Any = Api()
    going = ended(0.25, 0.5, None, state=RunState.TRAINING)
    with pytest.raises(WrongState, match=r"is training, .* from 0 \(untrained\) to 2"):
        which_adapter(going, None)
    said = take_adapter(api, going, which_adapter(going, 1), tmp_path / "a")
    assert said[0].startswith("Wrote the adapter after round 1 of 3 of ")
    lines = "\n".join(said)
    assert "from_pretrained" in lines and "--max-lora-rank 32" in lines
    (tmp_path / "empty").mkdir()
    whole = ended(0.25, 0.5, 0.75)
    take_adapter(api, whole, which_adapter(whole, None), tmp_path / "empty")
    assert asked == ["1", "final"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "empty"]
    for folder in ("a", "empty"):
        assert (tmp_path / folder / "adapter_model.safetensors").read_bytes() == data
    assert "Members" not in (tmp_path / "a" / "README.md").read_text()
    assert "untrained" in take_adapter(api, going, "0", tmp_path / "b")[0]
    with pytest.raises(InvalidSettings, match="already exists"):
        take_adapter(api, going, "2", tmp_path / "a")
    assert asked == ["1", "final", "0"]
    # Merging into another base model leaves nothing behind.
    other = tmp_path / "other"
    shutil.copytree(MODEL, other)
    (other / "config.json").write_text((other / "config.json").read_text() + "\n")
    with pytest.raises(BaseModelMismatch):
        take_adapter(api, going, "1", tmp_path / "c", Format.MERGED, str(other))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "empty", "other"]
    take_adapter(api, going, "1", tmp_path / "c", Format.MERGED, str(MODEL))
    assert (tmp_path / "c" / "model.safetensors").exists()


def test_a_topic_that_an_evaluator_has_named_moves_no_cursor() -> None:
    """It appears on the terminal of every organisation that asks for the outcome."""
    assert all(line.isprintable() for line in lines(ended(0.25, 0.5, topic="a\x1b[2J\n\u202eb")))

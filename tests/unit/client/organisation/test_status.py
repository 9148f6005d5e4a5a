"""`pubswap client status` for a daemon that runs or does not, with and without a coordinator."""

import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from pubswap_client.demo.demos import MODEL
from pubswap_client.organisation import report
from pubswap_client.organisation.report import ASK_SECONDS, MemberReport, look
from pubswap_client.organisation.status import as_json, rendered
from pubswap_client.state import history
from pubswap_client.state.history import HeldOutScore, RoundFigures
from pubswap_client.state.lock import locked
from pubswap_client.state.status import DaemonStatus, read_status, write_status
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import Unreachable
from pubswap_protocol.messages import Membership, Role, RunState, RunView, Score
from pubswap_protocol.model import model_card
from pubswap_protocol.settings import RunSettings

NOW = datetime(2026, 11, 23, 14, 0, tzinfo=UTC)
WAITS = "waiting for b to finish round 2, until 2026-11-23 14:03:20 UTC at most"
SETTINGS = RunSettings(rounds=9, local_steps=40)
MEMBER = Membership(run="r1", run_name="consortium", name="a", role=Role.CLIENT, token="secret")
DAEMON = DaemonStatus(
    run="r1",
    at=NOW - timedelta(hours=2),
    doing=WAITS,
    round=2,
    step=30,
    steps=40,
    rewards=[0.25, 0.5],
    step_seconds=18.0,
    tokens_per_second=321.0,
    sent_bytes=12_300_000,
    received_bytes=999,
)
ROUND = RoundFigures(
    run="r1",
    round=1,
    start=digest_of(b""),
    at=NOW,
    steps=2,
    rewards=[0.0, 0.125],
    tokens=9,
    seconds=1.0,
    waited=0.0,
    **dict.fromkeys(("reward", "loss", "kl", "clip_share", "zero_variance_share"), 0.0),
    response_tokens=None,
)


HELD_OUT = HeldOutScore(
    **{"run": "r1", "round": 0, "adapter": digest_of(b""), "at": NOW, "pass_at_1": 0.25},
    **{"problems": 64, "digest": digest_of(b"64"), "seconds": 1.0},
)


def run(state: RunState, paused: bool = False, waiting_for: str | None = None) -> RunView:
    return RunView(
        id="r1",
        name="consortium",
        state=state,
        paused=paused,
        round=2,
        waiting_for=waiting_for,
        settings=SETTINGS,
        model=model_card(MODEL, SETTINGS.lora, "org/base", "main"),
        created_at=NOW,
        latest=Score(round=1, pass_at_1=0.25),
        best=Score(round=0, pass_at_1=0.5),
    )


class Api:
    """A fake coordinator that always gives this answer, and counts the requests."""

    asked = 0

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def run(self, _: str) -> RunView:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        found: RunView = self.answer
        return found


def shown(state: Path, answer: Any) -> tuple[str, MemberReport]:
    """The screen's text, and the report, for this answer of the coordinator."""
    api: Any = Api(answer)
    found = look(state, MEMBER, api)
    screen = io.StringIO()
    Console(file=screen, width=140).print(rendered(found, NOW))
    return screen.getvalue(), found


@pytest.fixture
def state(tmp_path: Path) -> Path:
    write_status(tmp_path, DAEMON)
    history.append(tmp_path / history.HISTORY, ROUND)
    return tmp_path


def test_a_running_daemon_is_shown_with_what_it_waits_for(state: Path) -> None:
    """Run, round, step, time left, own rewards of all rounds, bytes and pass@1."""
    with locked(state):
        text, found = shown(state, run(RunState.TRAINING))
    assert not found.over
    for part in (
        "a in consortium: training, round 2 of 9",
        WAITS,
        "30 of 40 in round 2, about 3 min to the end of its steps",
        "0.500  ▁▃▅█",
        "321",
        "12.3 MB sent, 999 bytes received",
        "0.250 after round 1; best 0.500 after round 0",
    ):
        assert part in text
    assert "secret" not in text


def test_a_repeated_round_shows_its_own_reward(state: Path) -> None:
    """From its first step on, even while the history ends with rounds that a rollback has
    undone.
    """
    history.append(state / history.HISTORY, ROUND.model_copy(update={"round": 2}))
    for round_, rewards, shown_as in (
        (2, [0.0, 0.125], []),  # already the last one in the history
        (2, [0.75], [0.75]),
        (1, [0.75], [0.75]),
    ):
        update = {"round": round_, "rewards": rewards}
        write_status(state, DAEMON.model_copy(update=update))
        _, found = shown(state, run(RunState.TRAINING))
        assert found.rewards == [0.0, 0.125, 0.0, 0.125, *shown_as]


def test_own_pass_at_1_is_shown_where_problems_are_held_out(state: Path) -> None:
    """A single score, or the change from the first to the last; only of this run."""
    path = state / history.HELD_OUT
    assert "held-out" not in shown(state, run(RunState.TRAINING))[0]
    other = HELD_OUT.model_copy(update={"run": "r0", "pass_at_1": 0.75})
    for score in (other, HELD_OUT):
        history.append(path, score)
    text, _ = shown(state, run(RunState.TRAINING))
    assert "0.250 after round 0, on 64 held-out problems of our own" in text
    history.append(path, HELD_OUT.model_copy(update={"round": 2, "pass_at_1": 0.5}))
    text, found = shown(state, run(RunState.TRAINING))
    assert "0.250 → 0.500 (+0.250) from round 0 to round 2, on 64" in text
    listed = json.loads(as_json(found))["held_out"]
    assert [(one["round"], one["pass_at_1"]) for one in listed] == [(0, 0.25), (2, 0.5)]


def test_a_daemon_that_does_not_run_is_shown_as_it_was_last_active(state: Path) -> None:
    """When it was last active, what it was doing, and what to do, unless the run has ended."""
    text, found = shown(state, run(RunState.TRAINING))
    assert found.over and "not running; last active 2 h ago" in text
    assert "pubswap client start" in text and WAITS in text and "to the end" not in text
    assert "pubswap client start" not in shown(state, run(RunState.FINISHED))[0]
    assert "nothing here yet" in shown(state / "other", run(RunState.OPEN))[0]


def test_an_evaluator_is_not_said_to_have_done_nothing() -> None:
    """It keeps no record of what it has evaluated."""
    judge = MEMBER.model_copy(update={"role": Role.EVALUATOR})
    report = MemberReport(judge, None, None, [], [], run(RunState.TRAINING))
    screen = io.StringIO()
    Console(file=screen, width=140).print(rendered(report, NOW))
    said = screen.getvalue()
    assert "not running" in said and "nothing" not in said and "pubswap evaluate" in said


def test_open_paused_and_finished_are_told_apart(state: Path) -> None:
    """So is a run that needs its operator to act."""
    heads = [
        shown(state, run(*which))[0].splitlines()[0]
        for which in (
            (RunState.OPEN,),
            (RunState.TRAINING, True),
            (RunState.FINISHED,),
            (RunState.CANCELLED,),
        )
    ]
    words = [head.partition(": ")[2].partition(",")[0] for head in heads]
    assert words == ["open", "training (paused)", "finished", "cancelled"]
    text, _ = shown(state, run(RunState.TRAINING, False, "[too] few clients"))
    assert "The operator must act: [too] few clients" in text


def test_without_the_coordinator_the_state_folder_is_shown(state: Path) -> None:
    """The reason is shown as well; the JSON contains the same."""
    with locked(state):
        text, found = shown(state, Unreachable("It is away."))
    assert not found.over
    assert "The run's state is unknown: It is away." in text and WAITS in text
    told = json.loads(as_json(found))
    assert told["run"] is None and told["coordinator_fault"] == "It is away."
    assert told["running"] is True and told["rewards"] == [0.0, 0.125, 0.25, 0.5]
    assert (told["daemon"]["doing"], told["daemon"]["left_seconds"]) == (WAITS, 180.0)
    known = json.loads(as_json(shown(state, run(RunState.OPEN, True))[1]))["run"]
    assert (known["state"], known["paused"], known["rounds"]) == ("open", True, 9)


@pytest.mark.parametrize("answer", [run(RunState.TRAINING), Unreachable("It is away.")])
def test_a_view_that_stays_open_asks_seldom_and_shows_the_daemon_at_once(
    state: Path, answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator is asked every 30 s, in a new round, and when the daemon has ended."""
    now = [0.0]
    monkeypatch.setattr(report, "time", SimpleNamespace(monotonic=lambda: now[0]))
    api: Any = Api(answer)
    seen = look(state, MEMBER, api)

    def asked(seconds: float) -> int:
        nonlocal seen
        now[0] += seconds
        seen = look(state, MEMBER, api, seen)
        return int(api.asked)

    with locked(state):
        asked(0)
        api.asked = 0
        assert [asked(2) for _ in range(10)] == [0] * 10
        write_status(state, DAEMON.model_copy(update={"doing": "private step 31"}))
        assert asked(0) == 0
        assert seen.daemon is not None and seen.daemon.doing == "private step 31"
        assert (asked(ASK_SECONDS), asked(0)) == (1, 1)
        write_status(state, DAEMON.model_copy(update={"round": 3}))
        assert (asked(0), asked(0)) == (2, 2)
    assert (asked(0), asked(0)) == (3, 3)


def test_a_status_that_is_torn_or_of_another_run_is_ignored(state: Path) -> None:
    """A power failure may tear it, and the folder may have been used for another run."""
    whole = (state / "status.json").read_bytes()
    assert (state / "status.json").stat().st_mode & 0o777 == 0o600
    for kept in range(len(whole)):
        (state / "status.json").write_bytes(whole[:kept])
        assert read_status(state, DAEMON.run) is None
    write_status(state, DAEMON.model_copy(update={"run": "another"}))
    assert shown(state, run(RunState.OPEN))[1].daemon is None
    write_status(state / "no such folder", DAEMON)


def test_a_member_that_has_only_enrolled_is_told_what_to_start(tmp_path: Path) -> None:
    """Nothing is suggested for a run that has ended."""
    assert "pubswap client start --data FILE" in shown(tmp_path, run(RunState.OPEN))[0]
    assert "next" not in shown(tmp_path, run(RunState.FINISHED))[0]

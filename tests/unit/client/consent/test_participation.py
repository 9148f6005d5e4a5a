"""A member stays away while its policy refuses, and limits what it sends meanwhile."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pubswap_client.consent import participation
from pubswap_client.consent.approval import save_approval
from pubswap_client.consent.consent import Consent, adopt
from pubswap_client.consent.ledger import Ledger
from pubswap_client.consent.participation import Participation, away_message, same_work
from pubswap_client.consent.policy import policy_path
from pubswap_client.consent.proposal import proposal_of
from pubswap_client.consent.rules import Code, Refusal
from pubswap_client.demo.demos import MODEL
from pubswap_protocol import paths
from pubswap_protocol.errors import RefusedByPolicy
from pubswap_protocol.messages import Away, Hello, RunState, RunView, Task, TaskKind
from pubswap_protocol.model import model_card
from support.client.terms import with_terms
from support.coordinator.coordinator import good_hello, merged

URL = "https://c.example"
ANSWERS = paths.PUBLIC_STEP_RESPONSES.format(run="r", round=1, public_step=1)


class Api:
    """A fake coordinator that records the requests that pass the policy."""

    def __init__(self, view: RunView, consent: Consent) -> None:
        self.view = view
        self._consent = consent
        self.came: list[str] = []
        self.tasks: list[Task] = []

    def task(self, run: str, wait: float) -> Task:
        self._consent.record("GET", paths.TASK.format(run=run), "", [])
        return self.tasks.pop(0)

    def run(self, run: str) -> RunView:
        self._consent.record("GET", paths.RUN.format(run=run), "", [])
        self.came.append("run")
        return self.view

    def away(self, run: str, reason: Away) -> None:
        self._consent.record("POST", paths.AWAY.format(run=run), "application/json", [b"{}"])
        self.came.append(reason.code)

    def hello(self, run: str, body: Hello) -> None:
        self._consent.record("POST", paths.HELLO.format(run=run), "application/json", [b"{}"])
        self.came.append("hello")


@pytest.fixture
def member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Participation:
    """An enrolled member's participation, which polls its files without a pause."""
    monkeypatch.setattr(participation, "LOOK_SECONDS", 0.0)
    settings = merged({})
    view = RunView(
        id="r",
        name="medqa",
        state=RunState.TRAINING,
        paused=False,
        round=1,
        settings=settings,
        model=model_card(MODEL, settings.lora, "org/model", None),
        created_at="2026-11-23T19:00:00Z",  # type: ignore[arg-type]
    )
    view = with_terms(view)
    consent = Consent(tmp_path, URL, Ledger(tmp_path))
    adopt(tmp_path, view, URL)
    api: Any = Api(view, consent)
    return Participation(api, "r", consent, good_hello(view))


def other(view: RunView, **overrides: object) -> RunView:
    """The same run with other settings, in its terms too."""
    return with_terms(view.model_copy(update={"settings": merged(overrides)}))


def edits(member: Participation, *texts: str | None) -> tuple[bool, list[str]]:
    """Wait while these texts are written to the policy in turn, the first before the wait.

    None restores the original. Returns whether the member was away, and all that it sent.
    """
    path = policy_path(member.consent.state)
    before, left = path.read_text(), list(texts)

    def edit(_: str = "") -> None:
        text = left.pop(0)
        path.write_text(before if text is None else text)

    edit()
    was_away = member.wait(edit)
    assert left == []
    came: list[str] = member.api.came  # type: ignore[attr-defined]
    return was_away, came


def test_a_member_without_refusals_asks_once_and_stays(member: Participation) -> None:
    """It was never away, so it says no hello."""
    assert edits(member, None) == (False, ["run"])


def test_a_member_that_is_away_gives_each_reason_once_and_returns_by_itself(
    member: Participation,
) -> None:
    """An unchanged reason is not repeated."""
    low, none = "limits.lora.rank.max = 1", "send_responses = false"
    came = ["run", "setting_not_allowed", "responses_not_allowed", "hello"]
    assert edits(member, low, low, low, none, None) == (True, came)


def test_a_removed_coordinator_is_told_so_and_not_asked_until_it_is_trusted_again(
    member: Participation,
) -> None:
    """An unreadable policy works the same way; the member reports each of the two and nothing
    else.
    """
    dropped, broken = 'coordinators = ["https://another.example"]', "max_rnak = 1"
    came = ["coordinator_not_allowed", "policy_unreadable", "run", "hello"]
    assert edits(member, dropped, dropped, broken, broken, None) == (True, came)


def test_a_coordinator_that_is_removed_between_two_looks_is_not_asked(
    member: Participation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policy is read again with each request, and the refusal ends no daemon."""
    looks, look = [()], member.consent.coordinator_refusals
    monkeypatch.setattr(
        member.consent, "coordinator_refusals", lambda: looks.pop() if looks else look()
    )
    came = ["coordinator_not_allowed", "run", "hello"]
    assert edits(member, 'coordinators = ["https://another.example"]', None) == (True, came)


def test_what_the_run_asks_is_asked_anew_after_a_silence(member: Participation) -> None:
    """It may have changed while the coordinator was not trusted."""
    low, dropped = "limits.lora.rank.max = 1", 'coordinators = ["https://another.example"]'
    came = ["run", "setting_not_allowed", "coordinator_not_allowed", "run", "hello"]
    assert edits(member, low, dropped, None) == (True, came)


def test_a_member_that_was_away_before_its_first_hello_says_none_on_return(
    member: Participation,
) -> None:
    """Its hello follows once the base model is loaded."""
    member.hello = None
    came = ["run", "setting_not_allowed"]
    assert edits(member, "limits.lora.rank.max = 1", None) == (True, came)


def test_a_run_that_has_ended_is_not_waited_for(member: Participation) -> None:
    """The policy refuses nothing of it, and the member says no hello."""
    api: Any = member.api
    api.view = api.view.model_copy(update={"state": RunState.FINISHED})
    assert edits(member, "limits.lora.rank.max = 1") == (False, ["run"])


def test_a_coordinator_that_shows_another_run_than_the_daemon_trains_is_sent_nothing(
    member: Participation,
) -> None:
    """The policy must allow both the run as it is shown and the run as it is trained."""
    api: Any = member.api
    policy = policy_path(member.consent.state)
    policy.write_text('send_responses = false\napprove = "never"')
    member.trains = api.view  # with public steps
    api.view = other(api.view, method="fedavg")
    shown = api.view
    codes = [one.code for one in member._refusals(back=False)]
    assert codes == [Code.NOT_APPROVED, Code.RESPONSES]
    for state in (RunState.TRAINING, RunState.FINISHED):
        api.view, member.view = shown.model_copy(update={"state": state}), None
        member._refusals(back=False)
        with pytest.raises(RefusedByPolicy, match="sends responses"):
            member.consent.record("POST", ANSWERS, paths.TENSORS_TYPE, [b"1"])


def test_a_member_that_is_away_hears_that_the_run_has_ended(
    member: Participation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks for the run again from time to time, and does not come back to a run that is over."""
    api: Any = member.api
    policy_path(member.consent.state).write_text("limits.lora.rank.max = 1")

    def end(_: str) -> None:
        monkeypatch.setattr(participation, "ASK_SECONDS", -1.0)
        api.view = api.view.model_copy(update={"state": RunState.FINISHED})

    assert member.wait(end) is True
    assert api.came == ["run", "setting_not_allowed", "run"]


TRAIN = Task(kind=TaskKind.TRAIN, state=RunState.TRAINING, round=2, adapter="blake3:" + "a" * 64)
FINISHED = Task(kind=TaskKind.FINISHED, state=RunState.FINISHED)


@pytest.mark.parametrize(
    ("then", "came"),
    [
        (TRAIN.model_copy(update={"rollbacks": 1}), ["hello"]),
        (FINISHED, []),
    ],
)
def test_a_round_that_is_sat_out_ends_with_a_hello_if_there_is_more_to_do(
    member: Participation, monkeypatch: pytest.MonkeyPatch, then: Task, came: list[str]
) -> None:
    """A run that has ended would refuse it."""
    monkeypatch.setattr(participation, "ASK_SECONDS", 0.0)
    api: Any = member.api
    api.tasks = [TRAIN, TRAIN.model_copy(update={"waits_for": "b"}), then]
    member.sit_out(TRAIN, "The loss is nan.", lambda what: None)
    assert api.came == [*["diverged"] * 3, *came]  # said at each look
    assert api.tasks == []


def test_a_coordinator_that_is_removed_while_a_round_is_sat_out_is_told_so_once(
    member: Participation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets no other message, and no question, until it is trusted again."""
    monkeypatch.setattr(participation, "ASK_SECONDS", 0.0)
    api: Any = member.api
    api.tasks = [TRAIN.model_copy(update={"rollbacks": 1})]
    policy = policy_path(member.consent.state)
    dropped, before = 'coordinators = ["https://another.example"]', policy.read_text()
    texts = [dropped, dropped, before, before]

    def edit(_: str) -> None:
        policy.write_text(texts.pop(0))

    member.sit_out(TRAIN, "The loss is nan.", edit)
    came = ["diverged", "coordinator_not_allowed", "run", "hello", "diverged", "hello"]
    assert api.came == came


@pytest.mark.parametrize(
    "change",
    [{"round": 3}, {"adapter": "blake3:" + "b" * 64}, {"rollbacks": 1}, {"kind": TaskKind.WAIT}],
)
def test_each_difference_in_what_is_trained_makes_another_task(change: dict[str, Any]) -> None:
    """A member that sits a round out comes back for any of them."""
    assert not same_work(TRAIN, TRAIN.model_copy(update=change))


def test_many_reasons_fit_into_one_message() -> None:
    """The coordinator would refuse a longer one, or one that is not plain text."""
    reasons = [Refusal(Code.SETTING, f"Größe {n}:\n{'x' * 90}") for n in range(9)]
    away = away_message(tuple(reasons))
    assert away.code == Code.SETTING
    assert away.detail.startswith("Gr??e 0:?xxx") and len(away.detail) == 400


def test_a_member_that_stays_away_pauses_between_looks(
    member: Participation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request would be an entry in the ledger, and each look reads its files."""
    slept: list[float] = []
    clock = SimpleNamespace(sleep=slept.append, monotonic=lambda: 0.0)
    monkeypatch.setattr(participation, "time", clock)
    monkeypatch.setattr(participation, "LOOK_SECONDS", 2.0)
    low = "limits.lora.rank.max = 1"
    edits(member, low, low, None)
    assert slept == [2.0, 2.0]
    api: Any = member.api
    api.tasks = [TRAIN, FINISHED]
    member.sit_out(TRAIN, "The loss is nan.", lambda what: None)
    assert slept == [2.0] * 2 + [participation.ASK_SECONDS] * 2


def test_terms_that_change_are_asked_about_and_a_daemon_that_has_begun_must_start_again(
    member: Participation,
) -> None:
    """It keeps what it has begun with. Until a person approves the new terms, it is away."""
    api: Any = member.api
    begun = member.trains = api.view
    api.view = other(begun, grpo={"gradient_epochs": 64})
    (refusal,) = member._refusals(back=False)
    assert (refusal.code, "grpo.gradient_epochs 2 -> 64" in refusal.detail) == (
        "not_approved",
        True,
    )
    save_approval(member.consent.state, proposal_of(api.view, URL))
    (refusal,) = member._refusals(back=False)
    assert "under other terms" in refusal.detail and "grpo.gradient_epochs" in refusal.detail
    assert member.trains == begun
    restarted = Participation(api, "r", member.consent)
    assert restarted._refusals(back=False) == ()


def test_another_number_of_clients_is_asked_about_and_needs_no_restart(
    member: Participation,
) -> None:
    """Without a question, where the policy has limits for it. Training does not depend on it."""
    api: Any = member.api
    begun = member.trains = api.view
    api.view = other(begun, clients=1)
    (refusal,) = member._refusals(back=False)
    assert refusal.detail.endswith("approved the run: clients 2 -> 1.")
    path = policy_path(member.consent.state)
    before = path.read_text()
    path.write_text(f"{before}\nlimits.clients = {{min = 1, max = 2}}")
    assert member._refusals(back=False) == ()
    assert member.trains == api.view
    path.write_text(before)
    save_approval(member.consent.state, proposal_of(api.view, URL))
    assert member._refusals(back=False) == ()


def test_a_run_that_is_shown_otherwise_than_in_its_terms_is_sent_nothing(
    member: Participation,
) -> None:
    """The member is away until the coordinator shows what the terms say."""
    api: Any = member.api
    sound, policy = api.view, policy_path(member.consent.state)
    policy.write_text('approve = "never"')
    quiet = merged({"grpo": {"max_response_tokens": 17}})
    for shown in ({"settings": quiet}, {"terms": None}, {"terms": "{}"}):
        api.view, member.view = sound.model_copy(update=shown), None
        (refusal,) = member._refusals(back=False)
        assert refusal.code is Code.TERMS
        with pytest.raises(RefusedByPolicy, match="terms"):
            member.consent.record("POST", ANSWERS, paths.TENSORS_TYPE, [b"1"])
    api.view, member.view = sound, None
    assert member._refusals(back=False) == ()
    member.consent.record("POST", ANSWERS, paths.TENSORS_TYPE, [b"1"])

"""The policy file, and the check that every outgoing request passes."""

import json
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from pubswap_client.consent.approval import approval_path, read_approval, save_approval, save_denial
from pubswap_client.consent.consent import Consent, adopt
from pubswap_client.consent.ledger import Ledger, entries, ledger_folder
from pubswap_client.consent.policy import (
    default_text,
    load_policy,
    numbers,
    policy_path,
)
from pubswap_client.consent.proposal import proposal_of
from pubswap_client.consent.rules import Code
from pubswap_client.demo.demos import MODEL
from pubswap_protocol import paths
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import InvalidSettings, RefusedByPolicy
from pubswap_protocol.messages import (
    Membership,
    RunState,
    RunView,
    UploadSession,
)
from pubswap_protocol.model import model_card
from support.client.terms import with_terms
from support.coordinator.coordinator import merged

URL = "https://c.example"
ANSWERS = (
    "POST",
    paths.PUBLIC_STEP_RESPONSES.format(run="r", round=1, public_step=1),
    paths.TENSORS_TYPE,
)
CHUNK = ("PATCH", paths.UPLOAD.format(run="r", upload="u"), paths.BYTES_TYPE)
UPLOAD = ("POST", paths.UPLOADS.format(run="r") + "?direct=true", "application/json")
PART = ("PUT", "https://s3.example/bucket/uploads/u/0", paths.BYTES_TYPE)
BEAT = ("POST", paths.HEARTBEAT.format(run="r"), "application/json")
UPDATE = ("POST", paths.UPDATE.format(run="r", round=1), "application/json")
PROMPTS = ("GET", paths.PUBLIC_STEP.format(run="r", round=1, public_step=1), "")
AWAY = ("POST", paths.AWAY.format(run="r"), "application/json")
HELLO = ("POST", paths.HELLO.format(run="r"), "application/json")
TASK = ("GET", paths.TASK.format(run="r") + "?wait=25", "")
EVENING = datetime(2026, 11, 23, 19, 0, tzinfo=UTC)


def view(**overrides: object) -> RunView:
    """A run in its first round."""
    settings = merged(dict(overrides))
    run = RunView(
        id="r",
        name="medqa",
        state=RunState.TRAINING,
        paused=False,
        round=1,
        settings=settings,
        model=model_card(MODEL, settings.lora, "org/model", None),
        created_at=EVENING,
    )
    return with_terms(run)


def member(state: Path) -> Consent:
    """The consent of an organisation that has just enrolled."""
    consent = Consent(state, URL, Ledger(state))
    adopt(state, view(), URL)
    assert consent.review(view()) == ()
    return consent


def changed(state: Path, **keys: str) -> None:
    """Set keys of the policy, as with an editor."""
    path = policy_path(state)
    kept = [line for line in path.read_text().splitlines() if line.split(" = ")[0] not in keys]
    path.write_text("\n".join([*kept, *(f"{key} = {value}" for key, value in keys.items())]))


def codes(consent: Consent, run: RunView | None = None) -> list[Code]:
    """The codes of all refusals of a run before its next round."""
    return [refusal.code for refusal in consent.review(run or view())]


def test_the_default_policy_allows_what_the_run_asks_and_no_more(tmp_path: Path) -> None:
    """The file is readable by its owner only, parses, and is never overwritten."""
    consent = member(tmp_path)
    path = policy_path(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    found = load_policy(path)
    assert (found.coordinators, found.runs) == ((URL,), ("medqa",))
    assert str(found.limits["lora.rank"]) == "at most 2"
    assert found.base_models == (view().model.weights_digest,)
    for more in (
        {"lora": {"rank": 4}},
        {"local_steps": 3, "method": {"period": 2}},
        {"rounds": 3},
        {"grpo": {"max_response_tokens": 17}},
        {"grpo": {"kl_beta": 0.0}},
        {"grpo": {"responses_per_prompt": 6}},
        {"grpo": {"prompts_per_step": 3}},
        {"method": {"period": 1}},
    ):
        assert codes(consent, view(**more)) == [Code.SETTING, Code.NOT_APPROVED], more
    for grpo in ({"temperature": 2.0}, {"learning_rate": 1.0}):
        assert codes(consent, view(grpo=grpo)) == [Code.NOT_APPROVED], grpo
    assert (
        default_text(proposal_of(view(method="fedavg"), URL)).count("send_responses = false") == 1
    )
    path.write_text("limits.rounds.max = 2")
    assert adopt(tmp_path, view(), URL) is None
    assert path.read_text() == "limits.rounds.max = 2"


def test_adapters_go_to_the_bucket_that_the_policy_names_and_to_no_other(tmp_path: Path) -> None:
    """The default policy lists the run's bucket; a bucket that the run names later is not added."""
    consent = member(tmp_path)
    assert consent.buckets() == ()
    bucket = "https://s3.example/bucket/prefix"
    asked = view().model_copy(update={"bucket": bucket})
    assert consent.review(asked) == ()  # an unlisted bucket is no reason to stay away
    assert consent.buckets() == ()
    policy_path(tmp_path).unlink()
    assert consent.buckets() == ()
    adopt(tmp_path, asked, URL)
    assert consent.buckets() == (bucket,)
    changed(tmp_path, max_rnak="3")
    assert consent.buckets() == ()


def test_a_mistyped_policy_is_refused_with_the_key(tmp_path: Path) -> None:
    """No part of the policy takes effect."""
    path = policy_path(tmp_path)
    for text, said in (
        ("max_rnak = 2", "max_rnak: there is no such key"),
        ("max_responses_a_round = 0", "max_responses_a_round: Input should be greater than 0"),
        ("max_responses_a_round = true", "max_responses_a_round: Input should be a valid integer"),
        ("max_bytes_a_day = 2", "max_bytes_a_day: removed in 0.1.0; the approved terms bound"),
        ('hours = "08:00-18:00"', "hours: removed in 0.1.0; start and stop the daemon by a timer"),
        ('send_responses = "no"', "send_responses: Input should be a valid boolean"),
        ("coordinators = []", "coordinators"),
        ('buckets = ["s3://bucket"]', "'s3://bucket' is not a bucket's address"),
        ('base_models = ["org/model"]', "base_models"),
        ("limits.grpo.kl_beta.min = nan", "limits.grpo.kl_beta.min"),
        ('limits.lora.rank.max = "8"', "limits.lora.rank.max"),
        ("limits.lora.rank.max = true", "limits.lora.rank.max"),
        ("limits.lora.rank = 8", "limits.lora.rank"),
        ("limits.lora.rank = {}", "limits.lora.rank: a limit has a min, a max, or both"),
        ("limits.lora.rank = {max = 8, most = 8}", "limits.lora.rank.most"),
        ("limits.lora.rank = {min = 9, max = 8}", "no number is at least 9, at most 8"),
        (
            "limits.swap.perod.min = 4",
            "swap.perod: there is no such key; did you mean method.period",
        ),
        ("limits.members.expected.min = 3", "members.expected: removed in 0.1.0; use clients"),
        ("limits.rank.max = 4", "rank: there is no such key; did you mean lora.rank"),
        ("limits.method.max = 4", "on a number in a run's settings; method: there is no such key"),
        ('[limits]\nhour = "08:00-18:00"', "a run's settings; hour: there is no such key"),
        ('approve = "always"', "approve: Input should be 'first'"),
        ("= 3", "is not TOML"),
        ("# send_responses = true", "is empty; a policy has"),
    ):
        path.write_text(text)
        with pytest.raises(InvalidSettings, match=said):
            load_policy(path)


@pytest.mark.parametrize(
    "text",
    [
        "limits.method.period.min = 4\nlimits.grpo.responses_per_prompt.max = 8",
        "[limits]\n'method.period' = {min = 4}\n'grpo.responses_per_prompt' = {max = 8}",
        "[limits.method]\nperiod.min = 4\n[limits.grpo.responses_per_prompt]\nmax = 8",
    ],
)
def test_a_limit_may_use_any_toml_syntax(tmp_path: Path, text: str) -> None:
    """As dotted keys, quoted keys or tables; any numeric setting of a run can be limited."""
    path = policy_path(tmp_path)
    path.write_text(text)
    found = {name: str(limit) for name, limit in load_policy(path).limits.items()}
    assert found == {"method.period": "at least 4", "grpo.responses_per_prompt": "at most 8"}
    every = set(numbers())
    assert {
        "seed",
        "local_steps",
        "aggregation.rule.min_rank",
        "privacy.epsilon",
        "wire",
    } - every == {"wire"}
    assert not every & {"method", "method.mode", "chat_template_options", "lora.target_modules"}


def test_a_coordinator_that_is_not_allowed_is_sent_nothing(tmp_path: Path) -> None:
    """The daemon stops before its first request, and so does enrolling into a folder with a
    policy.
    """
    consent = Consent(tmp_path, "https://evil.example", Ledger(tmp_path))
    consent.check_coordinator()  # there is no policy yet, so the run may be asked for
    assert consent.coordinator_refusals() == ()
    policy_path(tmp_path).write_text(f'coordinators = ["{URL}"]')
    with pytest.raises(RefusedByPolicy, match="does not allow the coordinator https://evil"):
        consent.check_coordinator()
    Consent(tmp_path, URL + "/", Ledger(tmp_path)).check_coordinator()


def test_what_may_not_leave_is_neither_recorded_nor_sent(tmp_path: Path) -> None:
    """From a change of the policy on, even a public step's prompts are not fetched.

    The member may still ask for the run's state, and tells the coordinator when it is away and
    back.
    """
    consent = member(tmp_path)
    consent.record(*ANSWERS, [b"1"])
    changed(tmp_path, send_responses="false")
    for request in (ANSWERS, CHUNK, PART, BEAT, UPDATE, PROMPTS):
        with pytest.raises(RefusedByPolicy, match="asks for sends responses"):
            consent.record(*request, [b"2"])
    for request in (AWAY, TASK, HELLO):
        consent.record(*request, [b"{}"])
    kinds = [entry.kind for entry in entries(ledger_folder(tmp_path))]
    assert kinds == ["responses", "away", "question", "hello"]
    assert codes(consent) == [Code.RESPONSES]
    changed(tmp_path, send_responses="true")
    consent.record(*CHUNK, [b"3"])


@pytest.mark.parametrize(
    ("policy", "code"),
    [
        ('coordinators = ["https://another.example"]', Code.COORDINATOR),
        ("max_rnak = 2", Code.UNREADABLE),
        ("", Code.UNREADABLE),
        (None, Code.UNREADABLE),
    ],
)
def test_a_coordinator_that_is_no_longer_trusted_is_told_only_that_we_are_away(
    tmp_path: Path, policy: str | None, code: Code
) -> None:
    """It gets no question and no hello; an unreadable policy counts, because it may have removed
    the coordinator.
    """
    consent = member(tmp_path)
    assert consent.coordinator_refusals() == ()
    path = policy_path(tmp_path)
    before = path.read_text()
    path.unlink()
    if policy is not None:
        path.write_text(policy)
    for request in (ANSWERS, CHUNK, PART, BEAT, UPDATE, PROMPTS, TASK, HELLO):
        with pytest.raises(RefusedByPolicy):
            consent.record(*request, [b"2"])
    (refusal,) = consent.coordinator_refusals()
    assert refusal.code is code
    consent.record(*AWAY, [b"{}"])
    path.write_text(before)
    consent.record(*TASK, [])
    assert consent.coordinator_refusals() == ()
    assert [entry.kind for entry in entries(ledger_folder(tmp_path))] == ["away", "question"]


def test_a_run_that_asks_for_more_in_mid_run_sends_nothing_further(tmp_path: Path) -> None:
    """The next round is refused, and so is the rest of this one."""
    consent = member(tmp_path)
    assert codes(consent, view(lora={"rank": 4})) == [Code.SETTING, Code.NOT_APPROVED]
    with pytest.raises(RefusedByPolicy, match=r"LoRA rank: 4\. This .* at most 2"):
        consent.record(*CHUNK, [b"1"])
    assert codes(consent) == []


def test_a_policy_that_is_damaged_or_gone_allows_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The coordinator learns no path; the log names the file and the error."""
    consent = member(tmp_path)
    policy_path(tmp_path).write_text("max_rnak = 3")
    (refusal,) = consent.review(view())
    assert (refusal.code, str(tmp_path) in refusal.detail) == (Code.UNREADABLE, False)
    assert str(policy_path(tmp_path)) in caplog.text and "max_rnak" in caplog.text
    with pytest.raises(RefusedByPolicy):
        consent.record(*ANSWERS, [b"1"])
    policy_path(tmp_path).unlink()
    assert codes(consent) == [Code.UNREADABLE]


def test_a_decision_is_kept_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    """It applies to one run; a denial holds until somebody approves again."""
    consent = member(tmp_path)
    save_denial(tmp_path, "r")
    assert codes(consent) == [Code.DENIED]
    another = view().model_copy(update={"id": "another"})
    save_approval(tmp_path, proposal_of(another, URL))
    assert read_approval(tmp_path, "r") is None
    assert codes(consent) == [Code.NOT_APPROVED]
    save_approval(tmp_path, proposal_of(view(), URL))
    assert codes(consent) == []
    approval_path(tmp_path).write_text("{")
    with pytest.raises(InvalidSettings, match="decide again"):
        read_approval(tmp_path, "r")
    assert codes(consent) == [Code.UNREADABLE]
    approval_path(tmp_path).unlink()
    approval_path(tmp_path).mkdir()  # as unreadable as root's file is to the daemon's user
    assert codes(consent) == [Code.UNREADABLE]


def test_losing_the_policy_reverts_no_decision(tmp_path: Path) -> None:
    """The next start writes a new policy, but earlier denials and narrower approvals still hold."""
    consent = member(tmp_path)
    more = view(grpo={"temperature": 2.0})
    decisions = (
        (partial(save_approval, proposal=proposal_of(view(), URL)), Code.NOT_APPROVED),
        (partial(save_denial, run="r"), Code.DENIED),
    )
    for decide, code in decisions:
        decide(tmp_path)
        policy_path(tmp_path).unlink()
        assert adopt(tmp_path, more, URL) == policy_path(tmp_path)
        assert codes(consent, more) == [code]


@pytest.mark.parametrize("id_", ["x/away?y=", "x/../../enroll?y=", "..", "", "r#"])
def test_no_id_from_a_coordinator_redirects_a_request(id_: str) -> None:
    """An id must not change a URL, because the policy and the ledger classify requests by URL."""
    run = view().model_dump(mode="json") | {"id": id_}
    member = {"run": id_, "run_name": "medqa", "name": "a", "role": "client", "token": "t"}
    upload = {"upload": id_, "digest": digest_of(b""), "size": 1, "offset": 0, "stored": False}
    upload |= {"chunk_bytes": 1, "largest_chunk_bytes": 1, "expires_at": None}
    messages: list[tuple[type[BaseModel], dict[str, Any], str]] = [
        (RunView, run, "id"),
        (Membership, member, "run"),
        (UploadSession, upload, "upload"),
    ]
    for message, fields, name in messages:
        message.model_validate_json(json.dumps(fields | {name: "r"}))
        with pytest.raises(ValidationError, match=rf"^1 .*\n{name}\n"):
            message.model_validate_json(json.dumps(fields))

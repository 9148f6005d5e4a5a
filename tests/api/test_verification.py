"""Answers too costly to verify, alongside honest members of the same run and of others."""

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sqlalchemy import update
from tokenizers import Tokenizer

from pubswap_client.demo.demos import MODEL
from pubswap_protocol import paths
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import DamagedBlob, IdempotencyMismatch, Invalid, InvalidSettings
from pubswap_protocol.messages import CreateRun, OpenUpload, Rollback
from pubswap_protocol.model import fingerprint, model_card
from pubswap_protocol.tensors.adapter import encode_adapter
from pubswap_protocol.tensors.response_form import ResponseForm
from pubswap_protocol.verifiers import verifier_of
from pubswap_protocol.verifiers.registry import VERIFIERS
from pubswap_server.clock import now
from pubswap_server.conductor import stalls
from pubswap_server.database.tables import SubmissionRow
from pubswap_server.exchange import exchanges, verification
from pubswap_server.storage.store import file_name, folder_name
from support.chaos.hostile_tokenizers import BOMBS as TOKENIZER_BOMBS
from support.client.answers import answers, bomb, exchange_seconds, honest
from support.coordinator.coordinator import Federation, Server, begun, merged, serving, settings_for
from support.eventually import until

# The towers keep the library busy; `math` refuses them at once.
SLOW = "math-verify"
try:
    verifier_of(SLOW)
    KNOWN = True
except InvalidSettings:
    KNOWN = False
slow = pytest.mark.skipif(not KNOWN, reason=f"{SLOW} is not a verifier here")

SETTINGS: dict[str, Any] = {
    "verifier": SLOW if KNOWN else "math",
    "grpo": {"prompts_per_step": 2, "responses_per_prompt": 4, "max_response_tokens": 32},
}
LARGER: dict[str, Any] = {"grpo": {**SETTINGS["grpo"], "prompts_per_step": 4}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The coordinator's data folder."""
    return tmp_path_factory.mktemp("verification")


@pytest.fixture(scope="module")
def verifying(folder: Path) -> Iterator[Server]:
    """A coordinator whose verifier processes have started."""
    settings = settings_for(folder).model_copy(update={"verifier_seconds": 1.0})
    with serving(settings) as server, server.closing:
        fed = begun(server, **SETTINGS)
        exchange_seconds(fed, "ab", {name: answers(fed, name, honest) for name in "ab"})
        yield server


def one_value(server: Server, query: str) -> Any:
    """The first column of a query's first row."""
    with closing(sqlite3.connect(server.data_dir / "pubswap.sqlite")) as connection:
        return connection.execute(query).fetchone()[0]


def verdicts(server: Server, fed: Federation, name: str) -> bool:
    """Whether a member's responses have their verdicts."""
    query = "SELECT correct IS NOT NULL FROM submissions WHERE run_id = ? AND member = ?"
    with closing(sqlite3.connect(server.data_dir / "pubswap.sqlite")) as connection:
        found = connection.execute(query, (fed.run.id, name)).fetchall()
    return bool(found and found[0][0])


@slow
@pytest.mark.full
def test_honest_members_do_not_wait_for_16_towers_of_powers(verifying: Server) -> None:
    """Another run's members finish an exchange, and a peer gets verdicts, long before."""
    hostile, other = begun(verifying, **SETTINGS | LARGER), begun(verifying, **SETTINGS)
    bodies = {name: answers(other, name, honest) for name in "ab"}
    towers, own = answers(hostile, "a", bomb), answers(hostile, "b", honest)
    hostile.members["a"].submit_responses(hostile.run.id, 1, 1, towers)
    hostile.members["b"].submit_responses(hostile.run.id, 1, 1, own)
    exchange_seconds(other, "ab", bodies)
    until(lambda: verdicts(verifying, hostile, "b"), 60)
    assert not verdicts(verifying, hostile, "a")
    hostile.members["b"].exchanged(hostile.run.id, 1, 1)
    (public_step,) = hostile.view().rounds[1].public_steps
    assert public_step.correct_share == {"a": 0.0, "b": 0.5}
    events = hostile.operator.events(hostile.run.id).events
    assert [e.details["responses"] for e in events if e.kind == "verification cut off"] == [16]
    again = hostile.members["a"].submit_responses(hostile.run.id, 1, 1, towers)
    assert again.status == "accepted"


@slow
def test_many_small_requests_of_one_member_stop_no_transfer(verifying: Server) -> None:
    """Of 12 submissions of towers one is accepted, and another run's transfers still work."""
    hostile, other = begun(verifying, **SETTINGS), begun(verifying, **SETTINGS)
    adapter = encode_adapter(other.run.model.layout, other.adapter(1))
    digest = other.members["a"].put_blob(other.run.id, adapter)
    bodies = [
        answers(hostile, "a", lambda k, _, n=n: rf"\boxed{{{n}^{{9^{{9^9}}}}}}")  # type: ignore[misc]
        for n in range(2, 14)
    ]
    taken = 0
    for body in bodies:
        try:
            hostile.members["a"].submit_responses(hostile.run.id, 1, 1, body)
            taken += 1
        except IdempotencyMismatch:
            pass
    assert taken == 1
    assert len(other.members["a"].blob(other.run.id, digest)) == len(adapter)
    wanted = OpenUpload(digest=digest_of(b"x" * len(adapter)), size=len(adapter))
    with verifying.http(other.tokens["b"]) as http:
        path = paths.UPLOADS.format(run=other.run.id)
        assert http.post(path, json=wanted.model_dump(mode="json")).status_code < 300
    assert not verdicts(verifying, hostile, "a")  # all while its towers were being verified


@slow
@pytest.mark.full
def test_who_came_in_time_is_in_however_long_another_s_answers_take(verifying: Server) -> None:
    """The deadline applies to arrival, not to verification, which does not extend it."""
    public_step = {"quorum": 2, "deadline_seconds": 2.0}
    fed = begun(verifying, **SETTINGS, clients=3, method=public_step)
    towers, bodies = answers(fed, "a", bomb), {n: answers(fed, n, honest) for n in "bc"}
    send = {name: fed.members[name].submit_responses for name in "abc"}
    assert send["a"](fed.run.id, 1, 1, towers).status == "accepted"
    assert send["b"](fed.run.id, 1, 1, bodies["b"]).status == "accepted"
    time.sleep(2.2)
    assert not fed.view().rounds[1].public_steps  # still open because of the towers
    assert send["c"](fed.run.id, 1, 1, bodies["c"]).status == "late, unused"
    fed.members["b"].exchanged(fed.run.id, 1, 1)
    (closed,) = fed.view().rounds[1].public_steps
    assert closed.correct_share == {"a": 0.0, "b": 0.5}


def test_who_comes_after_the_deadline_is_in_until_a_quorum_has_come(verifying: Server) -> None:
    """Also while another's verdicts are missing; once only those hold it up, one is too late, and
    nobody verifies what it sent."""
    public_step = {"quorum": 2, "deadline_seconds": 0.1}
    fed = begun(verifying, clients=3, method=public_step)
    bodies = {name: fed.responses(name, 1, 1, [1, 1]) for name in "abc"}
    send = {name: fed.members[name].submit_responses for name in "abc"}
    assert send["a"](fed.run.id, 1, 1, bodies["a"]).status == "accepted"
    none = update(SubmissionRow).where(SubmissionRow.run_id == fed.run.id).values(correct=None)
    database = verifying.app.state.services.database
    verifying.do(database.write(lambda session: session.execute(none)))
    time.sleep(0.2)
    assert send["b"](fed.run.id, 1, 1, bodies["b"]).status == "accepted"
    assert send["c"](fed.run.id, 1, 1, bodies["c"]).status == "late, unused"
    verifying.do(database.write(lambda session: session.execute(none)))
    awaited = partial(exchanges.unverified, until=now(), run=fed.run.id)
    assert [member for *_, member in verifying.do(database.read(awaited))] == ["a", "b"]


@pytest.mark.full
def test_a_restart_goes_on_with_what_has_no_verdicts(tmp_path: Path) -> None:
    """Members already have their receipts, so nobody sends again."""
    settings = settings_for(tmp_path).model_copy(update={"verifier_seconds": 1.0})
    with serving(settings) as server, server.closing:
        fed = begun(server, **SETTINGS)
        bodies = {"a": answers(fed, "a", bomb), "b": answers(fed, "b", honest)}
        for name, body in bodies.items():
            fed.members[name].submit_responses(fed.run.id, 1, 1, body)
        assert not verdicts(server, fed, "a")
    with serving(settings) as server, server.closing:
        for name in "ab":
            server.client(fed.tokens[name]).exchanged(fed.run.id, 1, 1)
        (public_step,) = server.client().whole_run(fed.run.id).rounds[1].public_steps
        assert public_step.correct_share == {"a": 0.0, "b": 0.5}


@slow
def test_responses_that_have_long_had_no_verdicts_are_told_of(
    verifying: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever delays the verifiers, and only until there are some."""
    monkeypatch.setattr(stalls, "VERDICT_SECONDS", 0.5)
    fed = begun(verifying, **SETTINGS)
    fed.members["a"].submit_responses(fed.run.id, 1, 1, answers(fed, "a", bomb))
    until(lambda: "responses of a to public step 1" in (fed.view().waiting_for or ""))
    until(lambda: fed.view().waiting_for is None)
    assert verdicts(verifying, fed, "a")


def test_verdicts_of_before_a_rollback_are_of_no_later_responses(
    verifying: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Responses sent after the rollback get their own verdicts."""
    reached, go_on = threading.Event(), threading.Event()

    read = ResponseForm.text

    def halting(form: ResponseForm, tokenizer: Tokenizer, tokens: NDArray[np.int32]) -> str:
        text = read(form, tokenizer, tokens)
        if "^" in text:
            reached.set()
            go_on.wait(60)
        return text

    monkeypatch.setattr(ResponseForm, "text", halting)
    fed = begun(verifying, **SETTINGS)
    own = {name: answers(fed, name, honest) for name in "ab"}
    wrong = answers(fed, "a", lambda k, answer: r"\boxed{-1}" if k < 2 else bomb(k, answer))
    fed.members["a"].submit_responses(fed.run.id, 1, 1, wrong)
    assert reached.wait(60)
    fed.operator.roll_back(fed.run.id, Rollback(to=0))
    for name in "ab":
        fed.members[name].submit_responses(fed.run.id, 1, 1, own[name])
    go_on.set()
    fed.members["b"].exchanged(fed.run.id, 1, 1)
    (public_step,) = fed.view().rounds[1].public_steps
    assert public_step.correct_share == {"a": 0.5, "b": 0.5}


@pytest.mark.parametrize("what", ["tokenizer", "public problems"])
def test_a_run_whose_inputs_are_damaged_says_so_and_goes_on_when_they_are_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The operator is told which blob is damaged, and members retry what failed."""
    monkeypatch.setattr(verification, "LOOK_SECONDS", 0.2)
    settings = settings_for(tmp_path)
    with serving(settings) as server, server.closing:
        fed = begun(server, **SETTINGS)
        bodies = {name: answers(fed, name, honest) for name in "ab"}
    digest = one_value(
        server,
        "SELECT tokenizer FROM runs"
        if what == "tokenizer"
        else "SELECT digest FROM problem_sets WHERE kind = 'public'",
    )
    file = server.data_dir / "blobs" / folder_name(digest) / file_name(digest)
    right = file.read_bytes()
    file.write_bytes(bytes(len(right)))
    with serving(settings) as server, server.closing:
        members = {name: server.client(fed.tokens[name]) for name in "ab"}

        def answer() -> None:
            for name, member in members.items():
                member.submit_responses(fed.run.id, 1, 1, bodies[name])

        def waiting() -> str:
            return server.client().whole_run(fed.run.id).waiting_for or ""

        if what == "tokenizer":
            answer()
        else:
            with pytest.raises(DamagedBlob):
                answer()
        until(lambda: f"{what} ({digest})" in waiting())
        file.write_bytes(right)
        answer()
        members["a"].exchanged(fed.run.id, 1, 1)
        until(lambda: waiting() == "")
        events = server.client().events(fed.run.id).events
        # Reported again only for responses that a member sent after the first report.
        assert {e.details["what"] for e in events if e.kind == "input damaged"} == {what}


@pytest.mark.parametrize("name", TOKENIZER_BOMBS)
def test_a_tokenizer_that_multiplies_texts_is_refused(verifying: Server, name: str) -> None:
    """It could come from a model hub, and the model card made from it matches."""
    settings, data = merged(SETTINGS), TOKENIZER_BOMBS[name]
    card = model_card(MODEL, settings.lora, "small", None)
    card = card.model_copy(update={"tokenizer_digest": fingerprint(data)})
    operator = verifying.client()
    run = operator.create_run(CreateRun(name=f"bomb-{hash(name)}", settings=settings, model=card))
    with pytest.raises(Invalid, match="at most"):
        operator.put_tokenizer(run.id, data)


HALVES = VERIFIERS.read(
    {"name": "weighted", "parts": [{"verifier": "math"}, {"verifier": "exact", "weight": 1.0}]}
)


@pytest.mark.parametrize(("correct_at", "share"), [(0.5, 0.5), (0.6, 0.0)])
def test_a_response_is_correct_from_correct_at_on(
    server: Server, correct_at: float, share: float
) -> None:
    """Half of each group is right by `math` alone, so its score is 0.5."""
    fed = begun(server, verifier=HALVES, correct_at=correct_at, grpo=SETTINGS["grpo"])
    for name in "ab":
        body = answers(fed, name, lambda k, answer: f"{answer}.0" if k % 2 else "no")
        fed.members[name].submit_responses(fed.run.id, 1, 1, body)
    for name in "ab":
        fed.members[name].exchanged(fed.run.id, 1, 1)
    (public_step,) = fed.view().rounds[1].public_steps
    assert public_step.correct_share == {"a": share, "b": share}

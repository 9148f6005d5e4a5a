"""Bad input is refused with an error code, and the run goes on."""

import json
import socket
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save

from pubswap_client.demo.demos import MODEL
from pubswap_protocol import paths
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import HelloNeeded, NameTaken, PubSwapError
from pubswap_protocol.messages import (
    CreateInvite,
    CreateRun,
    Evaluation,
    Progress,
    Reissue,
    SetKind,
    SubmitUpdate,
    UpdateMetrics,
)
from pubswap_protocol.model import fingerprint, model_card
from pubswap_protocol.problems import Problem
from pubswap_protocol.prompts import Message
from pubswap_protocol.tensors.adapter import Adapter, encode_adapter
from pubswap_protocol.tensors.responses import Response, encode_responses
from pubswap_protocol.verifiers.verifier import Verifier
from support.coordinator.coordinator import (
    OPERATOR_TOKEN,
    TOKENIZER,
    Federation,
    Server,
    begun,
    create,
    good_hello,
    jsonl,
    merged,
    problems,
)


def code_of(call: Callable[[], object]) -> str:
    """The code of the error that a call raises."""
    with pytest.raises(PubSwapError) as caught:
        call()
    return caught.value.code


def problem(reply: httpx.Response) -> dict[str, Any]:
    """The body of an error response, which must be problem+json with a request id."""
    assert reply.headers["content-type"] == paths.PROBLEM_TYPE
    body: dict[str, Any] = reply.json()
    assert body["status"] == reply.status_code
    assert body["request_id"] == reply.headers[paths.REQUEST_ID_HEADER]
    assert len(body["detail"]) > 10
    return body


def opened(http: httpx.Client, fed: Federation, size: int, digest: str = digest_of(b"")) -> str:
    """The path of a new upload session."""
    body = {"digest": digest, "size": size}
    reply = http.post(paths.UPLOADS.format(run=fed.run.id), json=body)
    assert reply.status_code == 201
    return paths.UPLOAD.format(run=fed.run.id, upload=reply.json()["upload"])


def chunk(http: httpx.Client, path: str, first: int, data: bytes) -> httpx.Response:
    """Send a chunk of an upload."""
    headers = {"Content-Range": f"{first}-{first + len(data) - 1}"}
    return http.patch(path, content=data, headers=headers)


@pytest.mark.parametrize("token", [None, "wrong", OPERATOR_TOKEN + "x"])
def test_a_wrong_token_is_refused(server: Server, token: str | None) -> None:
    """401 with the same code, whatever is wrong with the token."""
    with server.http(token) as http:
        reply = http.get(paths.RUNS)
    assert reply.status_code == 401
    assert reply.headers["WWW-Authenticate"] == "Bearer"
    assert problem(reply)["code"] == "unauthenticated"


def test_an_invite_is_good_once_and_for_a_time(server: Server) -> None:
    """Used, expired, replaced, unknown and clashing invites each have their own code."""
    fed = create(server)
    lost = fed.operator.invite(fed.run.id, CreateInvite(name="x"))
    invite = fed.operator.invite(fed.run.id, CreateInvite(name="x"))
    assert code_of(lambda: fed.operator.enroll(lost.invite)) == "invite_expired"
    fed.operator.enroll(invite.invite)
    assert code_of(lambda: fed.operator.enroll(invite.invite)) == "invite_used"
    assert code_of(lambda: fed.operator.enroll("nonsense")) == "unauthenticated"
    again = CreateInvite(name="x")
    assert code_of(lambda: fed.operator.invite(fed.run.id, again)) == "name_taken"
    brief = fed.operator.invite(fed.run.id, CreateInvite(name="y", expires_in_seconds=1))
    time.sleep(1.1)
    assert code_of(lambda: fed.operator.enroll(brief.invite)) == "invite_expired"


def test_another_protocol_version_is_refused(server: Server) -> None:
    """The error names both versions."""
    with server.http() as http:
        reply = http.get(paths.RUNS, headers={paths.PROTOCOL_HEADER: "99"})
    assert problem(reply)["code"] == "protocol_mismatch"


def test_another_base_model_or_verifier_is_refused(server: Server) -> None:
    """The message names the digest that differs."""
    fed = begun(server)
    good = good_hello(fed.run)
    api = fed.members["a"]
    api.hello(fed.run.id, good)
    other = good.model_copy(update={"weights_digest": fingerprint(b"other")})
    with pytest.raises(PubSwapError, match="in: weights") as caught:
        api.hello(fed.run.id, other)
    assert caught.value.code == "base_model_mismatch"
    stale = good.model_copy(update={"verifier_version": "exact@0"})
    assert code_of(lambda: api.hello(fed.run.id, stale)) == "conflict"


def test_who_is_refused_at_hello_takes_no_part(server: Server) -> None:
    """Nor does a member without a hello. An earlier valid hello does not count; a new one does."""
    fed = begun(server)
    run, good = fed.run.id, good_hello(fed.run)
    data = encode_adapter(fed.run.model.layout, fed.adapter(1))
    answers = fed.responses("a", 1, 1, [1, 1])
    update = SubmitUpdate(adapter=digest_of(data), metrics=UpdateMetrics(examples=1, steps=2))
    result = Evaluation(pass_at_1=0.5, by_topic={}, problems=5, seconds=1)

    def asks(name: str) -> list[Callable[[], object]]:
        api = fed.members[name]
        work: list[Callable[[], object]] = [
            lambda: api.put_blob(run, data),
            lambda: api.submit_responses(run, 1, 1, answers),
            lambda: api.exchanged(run, 1, 1),
            lambda: api.submit_update(run, 1, update),
        ]
        if name == "judge":
            work = [lambda: api.submit_evaluation(run, 0, result)]
        return [lambda: api.task(run, 0), *work]

    for wrong in (
        good.model_copy(update={"weights_digest": fingerprint(b"other")}),
        good.model_copy(update={"verifier_version": "exact@0"}),
    ):
        for name in ("a", "judge"):
            assert code_of(lambda n=name, w=wrong: fed.members[n].hello(run, w)) in (
                "base_model_mismatch",
                "conflict",
            )
            assert {code_of(ask) for ask in asks(name)} == {"hello_needed"}
            fed.members[name].hello(run, good)
            assert fed.members[name].task(run, 0).kind in ("train", "evaluate")
    invite = fed.operator.reissue(run, "a", Reissue())
    fed.members["a"] = server.client(fed.operator.enroll(invite.invite).token)
    with pytest.raises(HelloNeeded, match="Restart its daemon"):
        fed.members["a"].task(run, 0)
    assert {code_of(ask) for ask in asks("a")} == {"hello_needed"}
    fed.members["a"].hello(run, good)
    for ask in asks("a")[:2]:
        ask()


def test_an_unknown_run_is_refused(server: Server) -> None:
    """For the operator, too."""
    assert code_of(lambda: server.client().run("nowhere")) == "unknown_run"


def spoiled(fed: Federation) -> dict[str, bytes]:
    """Adapter files that must be refused, by a pattern of the expected message."""
    good: Adapter = fed.adapter(1)
    name = sorted(good)[0]

    def with_(tensor: "np.ndarray[Any, Any]") -> bytes:
        return save({**good, name: tensor})

    spoiled_numbers = good[name].copy()
    spoiled_numbers[0, 0] = np.nan
    infinite = good[name].copy()
    infinite[-1, -1] = np.inf
    encoded = encode_adapter(fed.run.model.layout, good)
    return {
        "missing": save({key: value for key, value in good.items() if key != name}),
        "not this run's": save({**good, "extra": np.zeros((2, 2), np.float32)}),
        "this run takes F32 \\(": with_(np.zeros((3, 3), np.float32)),
        "is F16": with_(good[name].astype(np.float16)),
        f"'{name}' holds a number that is not finite": with_(spoiled_numbers),
        "not finite": with_(infinite),
        "metadata": save(good, metadata={"note": "private text"}),
        "bytes, but its header says": encoded[:-4],
        "header": b"\xff" * 100,
    }


def test_a_bad_adapter_is_refused_with_the_tensor_s_name_and_the_run_goes_on(
    server: Server,
) -> None:
    """Missing, extra, wrong shape or dtype, not finite, metadata, truncated, not safetensors."""
    fed = begun(server, method="fedavg", rounds=1)
    for message, data in spoiled(fed).items():
        with pytest.raises(PubSwapError, match=message) as caught:
            fed.members["a"].put_blob(fed.run.id, data)
        assert caught.value.code == "invalid_adapter"
    fed.submit("a", 1, fed.adapter(1))
    fed.submit("b", 1, fed.adapter(2))
    assert fed.wait_for(1).state == "finished"


def test_bytes_are_named_by_blake3_alone(server: Server) -> None:
    """A SHA-256 digest is refused, with the expected form, before any bytes are sent."""
    fed = begun(server)
    with server.http(fed.tokens["a"]) as http:
        announced = {"digest": "sha256:" + 64 * "0", "size": 8}
        reply = http.post(paths.UPLOADS.format(run=fed.run.id), json=announced)
    assert reply.status_code == 422
    assert "digest: String should match pattern '^blake3:[0-9a-f]{64}$'" in reply.text


def test_a_blob_whose_digest_does_not_match_is_refused(server: Server) -> None:
    """Bytes must match the announced digest, and an update must name an uploaded blob."""
    fed = begun(server)
    data = encode_adapter(fed.run.model.layout, fed.adapter(1))
    with server.http(fed.tokens["a"]) as http:
        path = opened(http, fed, len(data), digest_of(b"else"))
        assert chunk(http, path, 0, data).status_code == 202
        finish = {"digest": digest_of(b"else")}
        assert problem(http.put(path, params=finish))["code"] == "digest_mismatch"
        assert problem(http.put(path, params=finish))["code"] == "unknown_upload"
        body = {"adapter": digest_of(b"else"), "metrics": {"examples": 1, "steps": 2}}
        update = paths.UPDATE.format(run=fed.run.id, round=1)
        assert problem(http.post(update, json=body))["code"] == "unknown_blob"


def test_a_body_that_is_too_large_is_refused_before_it_is_read(server: Server) -> None:
    """An upload may be no larger than the run's adapter, a chunk no larger than announced."""
    fed = begun(server)
    announced = {"digest": digest_of(b""), "size": fed.run.model.layout.file_bytes + (2 << 20)}
    with server.http(fed.tokens["a"]) as http:
        uploads = paths.UPLOADS.format(run=fed.run.id)
        assert problem(http.post(uploads, json=announced))["code"] == "too_large"
        path = opened(http, fed, 100)
        assert problem(chunk(http, path, 0, bytes(101)))["code"] == "too_large"
        long_json = json.dumps({"invite": "x" * (2 << 20)}).encode()
        headers = {"Content-Type": "application/json"}
        reply = http.post(paths.ENROLL, content=long_json, headers=headers)
        assert problem(reply)["code"] == "too_large"


def test_a_chunk_must_be_as_long_as_it_says(server: Server) -> None:
    """Too long, too short, reversed or unreadable is refused; the offset says what was kept."""
    fed = begun(server)
    with server.http(fed.tokens["a"]) as http:
        path = opened(http, fed, 100)
        long = http.patch(path, content=bytes(60), headers={"Content-Range": "0-49"})
        assert problem(long)["code"] == "length_mismatch"
        assert http.get(path).json()["offset"] == 0
        short = http.patch(path, content=bytes(40), headers={"Content-Range": "0-49"})
        assert problem(short)["code"] == "length_mismatch"
        assert http.get(path).json()["offset"] == 40
        for nonsense in ("9-3", "bytes 0-49/100", "a-b", ""):
            refused = http.patch(path, content=b"x", headers={"Content-Range": nonsense})
            assert problem(refused)["code"] == "invalid"
        assert problem(http.patch(path, content=b"x"))["code"] == "invalid"


def test_a_body_longer_than_declared_is_not_taken_for_more(server: Server) -> None:
    """Bytes after the declared length do not reach the upload."""
    fed = begun(server)
    host, port = server.url.removeprefix("http://").split(":")
    with server.http(fed.tokens["a"]) as http:
        path = opened(http, fed, 100)
        head = (
            f"PATCH {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {fed.tokens['a']}\r\n"
            "Content-Range: 0-49\r\nContent-Length: 50\r\nConnection: close\r\n\r\n"
        )
        with socket.create_connection((host, int(port)), timeout=10) as raw:
            raw.sendall(head.encode() + bytes(80))
            answer = b""
            while piece := raw.recv(65536):
                answer += piece
        assert answer.startswith(b"HTTP/1.1 202")
        assert http.get(path).json()["offset"] == 50


def answers(fed: Federation, edit: Callable[[list[int], list[list[Response]]], None]) -> bytes:
    """Client a's responses to public step 1, after an edit of prompts and groups."""
    prompts = [p.index for p in fed.members["a"].public_step_prompts(fed.run.id, 1, 1).prompts]
    tokens = np.array([5, 6, fed.run.model.eos_token_ids[0]], dtype=np.int32)
    one = Response(tokens, np.full(3, -1.0, dtype=np.float32))
    groups = [[one] * 4 for _ in prompts]
    edit(prompts, groups)
    return encode_responses(prompts, groups)


def test_responses_that_break_a_rule_are_refused_with_the_rule(server: Server) -> None:
    """Unknown prompts, ids outside the vocabulary, wrong K, too long, bad log-probabilities."""
    fed = begun(server)
    vocabulary = fed.run.model.vocabulary

    def replace(tokens: list[int], logprob: float = -1.0) -> Callable[..., None]:
        made = Response(np.array(tokens, np.int32), np.full(len(tokens), logprob, np.float32))
        return lambda prompts, groups: groups[0].__setitem__(0, made)

    cases: dict[str, Callable[..., None]] = {
        "asks for": lambda prompts, groups: prompts.__setitem__(0, 999),
        "in this order": lambda prompts, groups: prompts.reverse(),
        "Token ids must be in": replace([vocabulary, 1]),
        "must be in 0": replace([-1, 1]),
        "shape": lambda prompts, groups: [group.pop() for group in groups] and None,
        "1 to 16 tokens": replace([5] * 17),
        "finite and at most 0": replace([5, 1], 0.5),
        "finite": replace([5, 1], float("nan")),
        "Only the coordinator sets": lambda prompts, groups: groups[0].__setitem__(
            0, groups[0][0].as_donated()
        ),
    }
    api = fed.members["a"]
    for message, edit in cases.items():
        with pytest.raises(PubSwapError, match=message) as caught:
            api.submit_responses(fed.run.id, 1, 1, answers(fed, edit))
        assert caught.value.code == "invalid_responses"
    with pytest.raises(PubSwapError):
        api.submit_responses(fed.run.id, 1, 1, b"not safetensors at all")
    good = answers(fed, lambda prompts, groups: None)
    assert api.submit_responses(fed.run.id, 1, 1, good).status == "accepted"


def test_a_public_step_that_does_not_exist_is_refused(server: Server) -> None:
    """Neither a future round's nor a step beyond the round's last."""
    fed = begun(server)
    ask = partial(fed.members["a"].public_step_prompts, fed.run.id)
    for round_, public_step in ((1, 2), (2, 2), (0, 1)):
        assert code_of(partial(ask, round_, public_step)) == "not_found"
    assert code_of(partial(ask, 2, 1)) == "round_closed"
    assert code_of(partial(ask, 1, 0)) == "invalid"  # steps count from 1


def test_roles_keep_to_their_own(server: Server) -> None:
    """Clients are not operators, evaluators upload nothing, clients cannot read the test set."""
    fed = begun(server)
    a, judge = fed.members["a"], fed.members["judge"]
    assert code_of(a.runs) == "forbidden"
    assert code_of(lambda: a.problem_set(fed.run.id, SetKind.TEST)) == "forbidden"
    assert code_of(lambda: judge.put_blob(fed.run.id, b"x")) == "forbidden"
    assert code_of(lambda: fed.operator.task(fed.run.id)) == "forbidden"
    assert len(judge.problem_set(fed.run.id, SetKind.TEST).data.splitlines()) == 5
    assert len(a.problem_set(fed.run.id, SetKind.PUBLIC).data.splitlines()) == 12


def test_an_evaluation_with_a_nul_in_a_topic_is_refused(server: Server) -> None:
    """PostgreSQL would store it, and then fail to read any list with that run."""
    fed = begun(server)
    body = {"pass_at_1": 0.5, "by_topic": {"a\x00b": 0.5}, "problems": 5, "seconds": 1.0}
    with server.http(fed.tokens["judge"]) as http:
        reply = http.post(paths.EVALUATION.format(run=fed.run.id, round=0), json=body)
    assert reply.status_code == 422
    assert "by_topic" in problem(reply)["detail"]


def test_an_evaluation_of_more_topics_than_the_test_set_has_problems_is_refused(
    server: Server,
) -> None:
    """Each page of rounds lists all topics: with long names, a page grew to a hundred megabytes."""
    fed = begun(server)
    topics = {str(number): 0.5 for number in range(6)}
    body = {"pass_at_1": 0.5, "by_topic": topics, "problems": 5, "seconds": 1.0}
    with server.http(fed.tokens["judge"]) as http:
        reply = http.post(paths.EVALUATION.format(run=fed.run.id, round=0), json=body)
    assert reply.status_code == 422
    assert "by_topic" in problem(reply)["detail"]


def test_a_nul_in_a_query_is_refused(server: Server) -> None:
    """PostgreSQL cannot compare with it, so pages with such a filter failed."""
    with server.http() as http:
        for address in ("/?after=%00", "/runs/a/log?kind=%00"):
            assert http.get(address).status_code == 422


def test_one_run_s_member_sees_nothing_of_another(server: Server) -> None:
    """Every route of a run answers 404 to another run's member."""
    mine, theirs = begun(server), begun(server)
    digest = theirs.members["a"].task(theirs.run.id, 0).adapter
    run, token = theirs.run.id, mine.tokens["a"]
    metrics = {"examples": 1, "steps": 2}
    hello = {"verifier_version": "exact@8"} | {
        f"{part}_digest": fingerprint(b"") for part in ("config", "tokenizer", "weights")
    }
    progress = Progress(round=1, step=1, steps=2).model_dump(exclude_none=True)
    with server.http(token) as http:
        replies = [
            http.get(paths.RUN.format(run=run)),
            http.get(paths.RUN_SET.format(run=run, kind="public")),
            http.get(paths.TASK.format(run=run)),
            http.get(paths.BLOB.format(run=run, digest=digest)),
            http.post(paths.UPLOADS.format(run=run), json={"digest": digest, "size": 9}),
            http.get(paths.PUBLIC_STEP.format(run=run, round=1, public_step=1)),
            http.post(
                paths.PUBLIC_STEP_RESPONSES.format(run=run, round=1, public_step=1), content=b"x"
            ),
            http.get(paths.PUBLIC_STEP_EXCHANGED.format(run=run, round=1, public_step=1)),
            http.post(
                paths.UPDATE.format(run=run, round=1),
                json={"adapter": digest, "metrics": metrics},
            ),
            http.post(paths.HELLO.format(run=run), json=hello),
            http.post(paths.HEARTBEAT.format(run=run), json=progress),
        ]
    assert [problem(reply)["code"] for reply in replies] == ["unknown_run"] * len(replies)


def test_a_verifier_whose_library_is_not_installed_is_refused(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a run or a problem; an existing run is still listed, without a verifier version."""

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    fed, name = create(server), "reasoning_gym:chain_sum"
    settings = merged({"verifier": name})
    card = model_card(MODEL, settings.lora, "small", None)
    request = CreateRun(name="lacking", settings=settings, model=card)
    entry = Problem(id="1", prompt="1 + 1 =", answer="2", verifier=name)
    before = fed.operator.create_run(request.model_copy(update={"name": "before"}))
    assert before.verifier_version is not None
    monkeypatch.setattr("pubswap_protocol.verifiers.verifier.version", missing)
    assert fed.operator.runs()[0].verifier_version is None
    for call in (
        lambda: fed.operator.create_run(request),
        lambda: fed.operator.put_set(fed.run.id, SetKind.PUBLIC, jsonl([entry])),
    ):
        with pytest.raises(PubSwapError, match="needs reasoning-gym, which is not installed"):
            call()
    assert fed.run.id in [run.id for run in fed.operator.runs()]


def test_a_run_is_created_with_a_name_and_a_verifier_that_are_free_and_known(
    server: Server,
) -> None:
    """A name in use or an unknown verifier is refused."""
    fed = create(server)
    again = CreateRun(name=fed.run.name, settings=fed.run.settings, model=fed.run.model)
    with pytest.raises(NameTaken, match=f"pubswap run cancel {fed.run.name}"):  # it was left so
        fed.operator.create_run(again)
    fed.operator.move_run(fed.run.id, paths.RUN_OPEN)
    with pytest.raises(NameTaken, match=r"is open; choose another name\.$"):
        fed.operator.create_run(again)

    class Oracle(Verifier):
        name = "oracle"

    settings = merged({}).model_copy(update={"verifier": Oracle()})
    card = model_card(MODEL, settings.lora, "small", None)
    odd = CreateRun(name="odd", settings=settings, model=card)
    with pytest.raises(PubSwapError, match="no verifier 'oracle'; use one of") as caught:
        fed.operator.create_run(odd)
    assert caught.value.code == "invalid"


@pytest.mark.parametrize("kind", list(SetKind))
def test_a_run_with_a_prompt_over_its_limit_is_not_opened(server: Server, kind: SetKind) -> None:
    """Even if the operator's command has not checked lengths; it opens once the set is fixed."""
    fed = create(server, grpo={"max_prompt_tokens": 30})
    odd = problems(12)
    odd[4] = odd[4].model_copy(update={"prompt": "Say " * 31})
    fed.operator.put_set(fed.run.id, kind, jsonl(odd))
    with pytest.raises(PubSwapError, match=rf"The {kind} set: 1 of 12 .* line 5 \(p4: ") as caught:
        fed.operator.move_run(fed.run.id, paths.RUN_OPEN)
    assert caught.value.code == "invalid_problems"
    fed.operator.put_set(fed.run.id, kind, jsonl(problems(12)))
    assert fed.operator.move_run(fed.run.id, paths.RUN_OPEN).state == "open"


def test_a_run_with_messages_that_have_no_place_is_not_opened(server: Server) -> None:
    """A system message in a set beside the run's own; the set's line is named."""
    fed = create(server, chat_template="auto", system_prompt="Be terse.")
    odd = problems(12)
    turns = (Message(role="system", content="Be kind."), Message(role="user", content="Say 4."))
    odd[4] = odd[4].model_copy(update={"prompt": turns})
    fed.operator.put_set(fed.run.id, SetKind.PUBLIC, jsonl(odd))
    said = r"The public set, line 5 \(p4\): The prompt has a system message, and the run has a"
    with pytest.raises(PubSwapError, match=said):
        fed.operator.move_run(fed.run.id, paths.RUN_OPEN)


def test_a_run_opens_when_its_files_are_there_and_starts_when_its_clients_are(
    server: Server,
) -> None:
    """Otherwise the error says what is missing."""
    settings = merged({})
    card = model_card(MODEL, settings.lora, "small", None)
    operator = server.client()
    run = operator.create_run(CreateRun(name="bare", settings=settings, model=card))
    one = jsonl(problems(1))
    for message, send in (
        ("tokenizer.json", lambda: operator.put_tokenizer(run.id, TOKENIZER)),
        ("public and the test set", lambda: operator.put_set(run.id, SetKind.TEST, one)),
        ("public set", lambda: operator.put_set(run.id, SetKind.PUBLIC, one)),
        ("holds 1 problems; a public step takes 2", lambda: None),
    ):
        with pytest.raises(PubSwapError, match=message):
            operator.move_run(run.id, paths.RUN_OPEN)
        send()
    operator.put_set(run.id, SetKind.PUBLIC, jsonl(problems(2)))
    operator.move_run(run.id, paths.RUN_OPEN)
    with pytest.raises(PubSwapError, match="0 of 2 clients have enrolled"):
        operator.move_run(run.id, paths.RUN_START)
    assert code_of(lambda: operator.put_set(run.id, SetKind.PUBLIC, one)) == "wrong_state"
    assert code_of(lambda: operator.global_adapter(run.id, "best")) == "not_found"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "has no problems"),
        (b"\xff\xfe", "not UTF-8"),
        (b'{"id": "1", "prompt": "x", "answer": "y"}\n\n{}', "line 2: the line is empty"),
        (b'{"id": "1", "prompt": "x"}\n', "line 1: answer"),
        (b'{"id": "1", "prompt": "x", "answer": "y", "note": 1}\n', "line 1: note"),
        (b'{"id": "1", "prompt": "x", "answer": "y"}\n' * 2, "'1' occurs twice"),
        (b'{"id": "1", "prompt": "x", "answer": "y", "verifier": "z"}\n', "no verifier 'z'"),
    ],
)
def test_an_unusable_problem_set_is_refused_by_line(
    server: Server, data: bytes, message: str
) -> None:
    """The error names the line and the field."""
    fed = create(server)
    with pytest.raises(PubSwapError, match=message):
        fed.operator.put_set(fed.run.id, SetKind.PUBLIC, data)


def test_a_test_set_of_more_topics_than_an_evaluation_has_is_refused(server: Server) -> None:
    """Its evaluator would fail only once the run has started. A public set has no such limit."""
    fed = create(server)
    lines = [
        b'{"id": "%d", "prompt": "x", "answer": "y", "topic": "%d"}\n' % (n, n)
        for n in range(10_001)
    ]
    fed.operator.put_set(fed.run.id, SetKind.PUBLIC, b"".join(lines))
    with pytest.raises(PubSwapError, match="has 10001 topics, and an evaluation reports"):
        fed.operator.put_set(fed.run.id, SetKind.TEST, b"".join(lines))


def test_a_tokenizer_that_is_not_the_model_s_is_refused(server: Server) -> None:
    """With another tokenizer, responses would decode to different texts."""
    fed = create(server)
    assert code_of(lambda: fed.operator.put_tokenizer(fed.run.id, b"{}")) == "base_model_mismatch"


def test_what_is_no_route_or_no_json_is_a_problem_too(server: Server) -> None:
    """404, 405 and validation errors have the same form as any other error."""
    with server.http() as http:
        assert problem(http.get("/v1/nowhere"))["code"] == "not_found"
        assert problem(http.delete(paths.RUNS))["status"] == 405
        assert problem(http.post(paths.RUNS, json={"name": "x"}))["code"] == "invalid"
        assert problem(http.get(paths.RUNS + "/x/events?after=-1"))["code"] == "invalid"

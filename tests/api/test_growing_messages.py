"""New fields in messages: the coordinator refuses unknown ones, and clients ignore them."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from api.test_access import BODIES
from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.coordinator.retry import ONCE
from pubswap_protocol import paths
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import ProtocolMismatch, UnknownSetting
from pubswap_protocol.messages import (
    ChangeRun,
    FullEvaluation,
    JudgedResponse,
    MemberList,
    Progress,
    Reissue,
    Rollback,
    RunView,
)
from pubswap_protocol.problems import parse_problems
from pubswap_protocol.tensors.adapter import encode_adapter
from pubswap_protocol.terms import check_required
from support.coordinator.coordinator import (
    OPERATOR_TOKEN,
    Federation,
    Server,
    api_document,
    begun,
    create,
)

MAPS = {
    *("details", "metadata", "tensors", "by_topic", "parts", "replaced_share", "correct_share"),
    "chat_template_options",
}


def grown(value: Any, name: str = "") -> Any:
    """JSON with a field of a later version added to every object that is not a map."""
    if isinstance(value, list):
        return [grown(entry) for entry in value]
    if not isinstance(value, dict) or name in MAPS:
        return value
    return {key: grown(entry, key) for key, entry in value.items()} | {"of a later version": [1]}


class Growing(httpx.HTTPTransport):
    """Adds fields to every JSON response, and records the paths that returned one."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[str, str]] = set()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """The response, with fields added if it is JSON."""
        reply = super().handle_request(request)
        if reply.headers.get("content-type") != "application/json":
            return reply
        reply.read()
        self.seen.add((request.method, request.url.path))
        return httpx.Response(reply.status_code, json=grown(reply.json()))


@dataclass
class Grown(Server):
    """A coordinator whose clients get responses with added fields."""

    transport: Growing = field(default_factory=Growing)

    def client(self, token: str | None = OPERATOR_TOKEN) -> CoordinatorClient:
        """A client that does not retry."""
        return self.closing.enter_context(CoordinatorClient(self.url, token, ONCE, self.transport))


def json_answers(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The method and path of each operation that returns one of our messages as JSON."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for status, reply in operation["responses"].items():
                schema = reply.get("content", {}).get("application/json", {}).get("schema", {})
                if status.startswith("2") and "$ref" in schema:
                    yield method.upper(), path


def reached(document: dict[str, Any], start: Any) -> set[str]:
    """The schemas that a part of the document refers to, directly or not."""
    found: set[str] = set()
    left = [start]
    while left:
        names = set(re.findall(r'#/components/schemas/([^"]+)"', json.dumps(left.pop()))) - found
        found |= names
        left += [document["components"]["schemas"][name] for name in names]
    return found


def ageless(view: RunView | MemberList) -> dict[str, Any]:
    """A view without the times at which members were last seen, because they keep changing."""
    return view.model_dump(exclude={"members": {"__all__": {"unseen_seconds", "last_seen"}}})


def test_clients_ignore_fields_that_they_do_not_know(server: Server) -> None:
    """Fields added to every object of every JSON response do not change the parsed result."""
    grown_server = Grown(server.url, server.app, server.data_dir, server.closing)
    fed = begun(grown_server, clients=1)
    plain = Federation(server, fed.run, server.client())
    of_two = begun(grown_server, rounds=1)
    of_two.submit("a", 1, of_two.adapter(1))
    of_two.operator.exclude(of_two.run.id, 1, "a")
    run, operator, member = fed.run.id, fed.operator, fed.members["a"]
    assert operator.version() == plain.operator.version()
    assert ageless(operator.run(run)) == ageless(plain.operator.run(run))
    assert operator.runs() == plain.operator.runs()
    grown, listed = operator.members(run), plain.operator.members(run)
    assert ageless(grown) == ageless(listed)
    assert operator.events(run) == plain.operator.events(run)
    member.heartbeat(run, Progress(round=1, step=1, steps=2, reward=0.5))
    assert list(operator.steps(run)) == list(plain.operator.steps(run)) != []
    operator.reissue(run, "a", Reissue())
    assert member.task(run, 0) == server.client(fed.tokens["a"]).task(run, 0)
    member.submit_responses(run, 1, 1, fed.responses("a", 1, 1, [1, 1]))
    assert member.link(run).path.startswith("/own/link?code=")
    assert fed.submit("a", 1, fed.adapter(1)) == "accepted"
    assert fed.wait_for(1).rounds == plain.view().rounds
    shown = [JudgedResponse(topic="say", prompt="?", answer="1", response="2", right=False)]
    figures = {"pass_at_1": 0.0, "by_topic": {"say": 0.0}, "problems": 5, "seconds": 1.0}
    fed.members["judge"].submit_evaluation(run, 0, FullEvaluation(**figures, responses=shown))
    assert operator.evaluation(run, 0) == plain.operator.evaluation(run, 0)
    operator.roll_back(run, Rollback(to=0))
    operator.add_viewer(f"board-{run}")
    assert operator.viewers() == plain.operator.viewers()
    start = encode_adapter(fed.run.model.layout, fed.adapter(2))
    next_run = create(grown_server, initial_adapter=digest_of(start)).run.id
    assert operator.put_initial_adapter(next_run, start).digest == digest_of(start)
    operator.change_run(create(grown_server).run.id, ChangeRun(clients=1))
    for path in (paths.RUN_PAUSE, paths.RUN_RESUME, paths.RUN_CANCEL, paths.RUN_ARCHIVE):
        operator.move_run(run, path)
    unseen = {
        (method, path)
        for method, path in json_answers(api_document())
        if not any(
            method == asked and re.fullmatch(re.sub(r"{\w+}", "[^/]+", path), url)
            for asked, url in grown_server.transport.seen
        )
    }
    assert not unseen - {("GET", paths.UPLOAD)}  # requested only after an interrupted upload


def test_the_coordinator_refuses_fields_that_it_does_not_know(server: Server) -> None:
    """In every JSON body. The document is strict for requests and open for responses."""
    document = api_document()
    fed = begun(server)
    card, settings = fed.run.model.model_dump(), fed.run.settings.model_dump()
    bodies = BODIES | {"create_run": {"name": "x", "settings": settings, "model": card}}
    bodies["enroll"] = {"invite": "x"}
    asked = set()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {})
            if "application/json" not in content:
                continue
            name = operation["operationId"]
            asked.add(name)
            who = fed.tokens[{"submit_evaluation": "judge"}.get(name, "a")]
            operators = re.search("create|member|roll_back|change", name)
            values = {"run": fed.run.id, "member": "a", "round": 1}
            with server.http() if operators else server.http(who) as http:
                reply = http.request(
                    method, path.format(**values), json=bodies[name] | {"later": 1}
                )
            assert (reply.status_code, reply.json()["code"]) == (422, "invalid"), name
            assert "later" in reply.json()["detail"]
            for schema in reached(document, content):
                described = document["components"]["schemas"][schema]
                assert "properties" not in described or not described["additionalProperties"]
    assert asked == set(bodies)
    answered = reached(document, [entry["responses"] for entry in each(document)])
    strict = {
        name
        for name in answered
        if document["components"]["schemas"][name].get("additionalProperties") is False
    }
    assert not strict


def each(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All operations."""
    for methods in document["paths"].values():
        yield from methods.values()


def answer(view: dict[str, Any]) -> CoordinatorClient:
    """A client whose later-version coordinator returns this."""
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json=view))
    return CoordinatorClient("http://c", "secret", ONCE, transport)


def test_a_run_lists_the_settings_that_a_client_must_know(server: Server) -> None:
    """Those that differ from their defaults; an unknown setting is ignored unless listed."""
    view = create(server, method={"quorum": 2}).run
    assert {"method.quorum", "grpo.prompts_per_step", "lora.rank"} <= set(view.requires)
    assert not {"method.period", "seed", "lora", "method"} & set(view.requires)
    check_required(view.requires)
    later = view.model_dump(mode="json")
    later["settings"]["grpo"]["tempering"] = 0.5
    assert answer(later).run(view.id) == view
    later["requires"].append("grpo.tempering")
    with pytest.raises(UnknownSetting, match=r"requires grpo\.tempering.*Upgrade pubswap"):
        check_required(answer(later).run(view.id).requires)


def test_an_unknown_value_of_a_setting_asks_for_an_upgrade(server: Server) -> None:
    """With its own error code, which an older version reads as the parent class."""
    later = create(server).run.model_dump(mode="json")
    later["settings"]["method"]["strategy"] = "later"
    with pytest.raises(UnknownSetting, match=r"method\.strategy has a value.*Upgrade") as caught:
        answer(later).run("r")
    assert (caught.value.code, caught.value.status) == ("unknown_setting", 426)
    assert isinstance(caught.value, ProtocolMismatch)
    later["settings"]["method"]["strategy"] = "keep"
    later["settings"]["chat_template_options"] = {"tools": True}
    with pytest.raises(UnknownSetting, match=r"The run's settings are a combination .*Upgrade"):
        answer(later).run("r")


def test_an_evaluator_ignores_fields_of_a_test_set_that_it_does_not_know() -> None:
    """While a mistyped field in one's own problem file is still refused."""
    line = '{"id": "1", "prompt": "2 + 2", "answer": "4", "later": 1}'
    assert [problem.answer for problem in parse_problems(line, "s", extra="ignore")] == ["4"]

"""Requests whose response was lost: repeating them does nothing twice."""

from collections.abc import Callable
from typing import TypeVar

import httpx
import pytest

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.coordinator.retry import Backoff
from pubswap_protocol import paths
from pubswap_protocol.errors import InviteUsed, NameTaken
from pubswap_protocol.messages import (
    CreateInvite,
    CreateRun,
    Evaluation,
    RunState,
    SubmitUpdate,
    UpdateMetrics,
)
from pubswap_protocol.tensors.adapter import encode_adapter
from support.coordinator.coordinator import OPERATOR_TOKEN, Server, begun, create

T = TypeVar("T")
QUICK = Backoff(base_seconds=0.01, cap_seconds=0.01, tries=3)


class Forgetful(httpx.BaseTransport):
    """Passes every request on, but loses the first response to each."""

    def __init__(self) -> None:
        self._real = httpx.HTTPTransport()
        self._known: set[tuple[str, str]] = set()
        self.lost = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request; lose the response unless it is a GET or a repeat."""
        answer = self._real.handle_request(request)
        this = (request.method, str(request.url))
        if request.method != "GET" and this not in self._known:
            self._known.add(this)
            answer.read()
            self.lost += 1
            raise httpx.ReadError("the connection was cut before the answer")
        return answer

    def close(self) -> None:
        """Close the connections."""
        self._real.close()


def forgetful(server: Server, token: str | None, ask: Callable[[CoordinatorClient], T]) -> T:
    """The result of calls by a client that has to send every request twice."""
    transport = Forgetful()
    with CoordinatorClient(server.url, token, QUICK, transport) as api:
        found = ask(api)
    assert transport.lost
    return found


def test_a_run_is_created_and_moved_once(server: Server) -> None:
    """The retry returns the same run, and its name stays taken."""
    settings = create(server).run
    body = CreateRun(name="lost-and-found", settings=settings.settings, model=settings.model)
    run = forgetful(server, OPERATOR_TOKEN, lambda api: api.create_run(body))
    named = [one.id for one in server.client().runs() if one.name == "lost-and-found"]
    assert named == [run.id]
    with pytest.raises(NameTaken):
        server.client().create_run(body)
    fed = create(server, clients=1)
    for path, state in (
        (paths.RUN_OPEN, RunState.OPEN),
        (paths.RUN_PAUSE, RunState.OPEN),
        (paths.RUN_RESUME, RunState.OPEN),
        (paths.RUN_START, RunState.TRAINING),
        (paths.RUN_CANCEL, RunState.CANCELLED),
    ):
        if path == paths.RUN_START:
            fed.enroll("a")
        view = forgetful(server, OPERATOR_TOKEN, lambda api, p=path: api.move_run(fed.run.id, p))
        assert view.state is state
    kinds = [event.kind for event in fed.operator.events(fed.run.id).events]
    for kind in ("opened", "paused", "resumed", "started", "cancelled"):
        assert kinds.count(kind) == 1
    forgetful(server, OPERATOR_TOKEN, lambda api: api.move_run(run.id, paths.RUN_CANCEL))


def test_an_invite_whose_answer_was_lost_gives_its_token_to_the_asker_alone(
    server: Server,
) -> None:
    """Only the retry of the same request gets a working token; for others the invite is used."""
    fed = create(server)
    invite = fed.operator.invite(fed.run.id, CreateInvite(name="x")).invite
    membership = forgetful(server, None, lambda api: api.enroll(invite))
    assert server.client(membership.token).run(fed.run.id).id == fed.run.id
    with pytest.raises(InviteUsed):
        server.client(None).enroll(invite)
    kinds = [event.kind for event in fed.operator.events(fed.run.id).events]
    assert kinds.count("enrolled") == 1


def test_what_members_hand_in_counts_once(server: Server) -> None:
    """For responses, an adapter, an update and an evaluation, each sent twice."""
    fed = begun(server)
    body = fed.responses("a", 1, 1, [1, 1])
    run, token = fed.run.id, fed.tokens["a"]
    receipt = forgetful(server, token, lambda api: api.submit_responses(run, 1, 1, body))
    assert receipt.status == "accepted"
    data = encode_adapter(fed.run.model.layout, fed.adapter(1))
    digest = forgetful(server, token, lambda api: api.put_blob(run, data))
    update = SubmitUpdate(adapter=digest, metrics=UpdateMetrics(examples=1, steps=2))
    receipt = forgetful(server, token, lambda api: api.submit_update(run, 1, update))
    assert receipt.status == "accepted"
    found = Evaluation(pass_at_1=0.5, by_topic={"say": 0.5}, problems=5, seconds=0.1)
    judge = fed.tokens["judge"]
    forgetful(server, judge, lambda api: api.submit_evaluation(run, 0, found))
    kinds = [event.kind for event in fed.operator.events(run).events]
    assert [kinds.count(kind) for kind in ("responses", "update", "evaluated")] == [1, 1, 1]
    up = fed.view().rounds[1].traffic
    assert (up.adapters_up, up.responses_up) == (len(data), len(body))

"""Replies when the application fails unexpectedly."""

import asyncio

import httpx
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from pubswap_protocol import paths
from pubswap_server.http.middleware import CLIENT_CLOSED, RequestLog
from pubswap_server.http.problems import SAFETY_HEADERS
from pubswap_server.monitoring.metrics import Metrics


async def broken(scope: Scope, receive: Receive, send: Send) -> None:
    """An application with a fault."""
    raise RuntimeError("token abc")


def test_a_fault_of_ours_is_a_problem_with_an_id_and_no_detail() -> None:
    """The reply is 500 with the usual headers; only the log says what failed."""
    metrics = Metrics()

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(RequestLog(broken, metrics))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
            return await http.get("/", headers={paths.REQUEST_ID_HEADER: "mine"})

    reply = asyncio.run(ask())
    assert (reply.status_code, reply.json()["code"]) == (500, "server_fault")
    assert reply.json()["request_id"] == reply.headers[paths.REQUEST_ID_HEADER] == "mine"
    assert {name: reply.headers[name] for name in SAFETY_HEADERS} == SAFETY_HEADERS
    assert "abc" not in reply.text
    assert b'status="500"' in metrics.text()


def test_a_client_that_goes_away_is_no_fault_of_ours() -> None:
    """It is counted as 499, and nothing is sent."""
    metrics = Metrics()

    async def reading(scope: Scope, receive: Receive, send: Send) -> None:
        await Request(scope, receive).body()

    async def gone() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def sent(message: object) -> None:
        raise AssertionError("nothing can be sent")

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [], "query_string": b""}
    asyncio.run(RequestLog(reading, metrics)(scope, gone, sent))
    assert f'status="{CLIENT_CLOSED}"'.encode() in metrics.text()

"""A browser that has signed in to the dashboard."""

from collections.abc import Iterator

import httpx
import pytest

from support.coordinator.coordinator import (
    OPERATOR_TOKEN,
    Server,
)


@pytest.fixture
def browser(server: Server) -> Iterator[httpx.Client]:
    """A client that has signed in and follows redirects."""
    with server.http(None) as http:
        http.follow_redirects = True
        answer = http.post("/sign-in", data={"token": OPERATOR_TOKEN})
        assert answer.status_code == 200, answer.text
        yield http

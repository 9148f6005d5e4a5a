"""Check every response of a coordinator against its OpenAPI document."""

import json
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pubswap_protocol.paths import PROBLEM_TYPE


class Documented:
    """Middleware that notes the responses missing from the document."""

    def __init__(self, app: ASGIApp, document: dict[str, Any]) -> None:
        self.app = app
        self.document = document
        self.unknown: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application, and check what it sends."""
        answer: list[Message] = []

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start" or (answer and len(answer) < 3):
                answer.append(message)
            await send(message)

        try:
            await self.app(scope, receive, noted)
        finally:
            operation = self._operation(scope)
            if answer and operation is not None:
                self._look(operation, scope["method"], answer)

    def _operation(self, scope: Scope) -> dict[str, Any] | None:
        """The request's operation, or None if no route has its path and method."""
        path = getattr(scope.get("route"), "path", None)
        operations: dict[str, Any] = self.document["paths"].get(path, {})
        return operations.get(scope.get("method", "").lower())

    def _look(self, operation: dict[str, Any], method: str, answer: list[Message]) -> None:
        status = str(answer[0]["status"])
        name = f"{operation['operationId']}: {status}"
        if status not in operation["responses"]:
            self.unknown.add(name)
            return
        if int(status) < 400 or method == "HEAD" or len(answer) < 2:
            return
        reference = operation["responses"][status]["$ref"].rpartition("/")[2]
        content = self.document["components"]["responses"][reference]["content"]
        code = json.loads(answer[1]["body"])["code"]
        narrowed = content[PROBLEM_TYPE]["schema"]["allOf"][1]
        headers = {key.lower(): value for key, value in answer[0]["headers"]}
        if headers[b"content-type"] != PROBLEM_TYPE.encode():
            self.unknown.add(f"{name} as {headers[b'content-type']!r}")
        if code not in narrowed["properties"]["code"]["enum"]:
            self.unknown.add(f"{name} {code}")

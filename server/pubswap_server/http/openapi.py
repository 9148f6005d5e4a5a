"""The OpenAPI document: FastAPI's, plus every operation's errors, taken from the error tree."""

import json
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI

from pubswap_protocol.errors import (
    Invalid,
    LocalFault,
    ProblemDetails,
    ProxyFault,
    PubSwapError,
    StateInUse,
    UnknownSetting,
    Unreachable,
    tree,
)
from pubswap_protocol.paths import PROBLEM_TYPE
from pubswap_server.http.bodies import REFUSAL_HEADERS, REFUSED, RETRY_AFTER

Json = dict[str, Any]

# No coordinator sends these, because they occur in a client or in a process that does not start.
_NOT_SENT = (LocalFault, ProxyFault, StateInUse, UnknownSetting, Unreachable)

# Possible for any request: from the parser, the middleware, or an unreachable database.
_ANYWHERE = {400, 415, 422, 426, 500, 503}
_WITH_TOKEN = {401, 403, 429}
_WITH_BODY = {408, 413}
_OF_A_RUN = {404, 409}
_WRITING = {409, 507}


class Documented(FastAPI):
    """A FastAPI app whose OpenAPI document lists every operation's errors."""

    def openapi(self) -> Json:
        if not self.openapi_schema:
            _complete(super().openapi())
        return super().openapi()


def _complete(document: Json) -> None:
    components = document["components"]
    for unsent in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(unsent, None)
    components["schemas"]["ProblemDetails"] = ProblemDetails.model_json_schema(mode="serialization")
    components["responses"] = {
        _name(status): _refusal(status, errors) for status, errors in _by_status().items()
    }
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            # Path parameters in the path's order, whichever dependency declares them.
            operation.get("parameters", []).sort(key=lambda parameter: _position(parameter, path))
            replies = operation["responses"]
            for status in sorted(_refused(path, method, operation)):
                replies[str(status)] = {"$ref": f"#/components/responses/{_name(status)}"}
    used = json.dumps(document)
    for name in [*components["schemas"]]:  # FastAPI adds the bases of named values
        if f'"#/components/schemas/{name}"' not in used:
            del components["schemas"][name]


def _position(parameter: Json, path: str) -> int:
    return path.index(f"{{{parameter['name']}}}") if parameter["in"] == "path" else len(path)


def _refused(path: str, method: str, operation: Json) -> set[int]:
    """An operation's error statuses: common to its kind, or named by its route."""
    named = {int(status) for status in operation["responses"] if int(status) >= 400}
    return (
        named
        | _ANYWHERE
        | (_WITH_TOKEN if "security" in operation else set())
        | (_WITH_BODY if "requestBody" in operation else set())
        | (_WRITING if method != "get" else set())
        | (_OF_A_RUN if "{run}" in path else set())
    )


def _by_status() -> dict[int, list[type[PubSwapError]]]:
    errors: dict[int, list[type[PubSwapError]]] = {400: [Invalid]}  # for bytes that are not HTTP
    for error in tree(PubSwapError)[1:]:
        if not issubclass(error, _NOT_SENT):
            errors.setdefault(error.status, []).append(error)
    return errors


def _name(status: int) -> str:
    return HTTPStatus(status).phrase.title().replace(" ", "").replace("-", "")


def _refusal(status: int, errors: list[type[PubSwapError]]) -> Json:
    retryable = [error.code for error in errors if error.retryable]
    lines = [
        f"- `{error.code}`: {error.title()}{REFUSED if error.retryable else ''}" for error in errors
    ]
    code = {"type": "string", "enum": [error.code for error in errors]}
    narrowed = {"type": "object", "properties": {"code": code, "status": {"const": status}}}
    schema = {"allOf": [{"$ref": "#/components/schemas/ProblemDetails"}, narrowed]}
    headers = REFUSAL_HEADERS.get(status, {}) | (RETRY_AFTER if retryable else {})
    reply: Json = {
        "description": "\n".join(lines),
        "content": {PROBLEM_TYPE: {"schema": schema}},
        "x-retryable": retryable,
    }
    return reply | ({"headers": headers} if headers else {})

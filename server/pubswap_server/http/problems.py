"""Error responses: RFC 9457 problem+json with a stable code."""

import errno
import math

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.types import Scope

from pubswap_protocol.errors import (
    Forbidden,
    Invalid,
    NoSpace,
    NotFound,
    PubSwapError,
    TooLarge,
    TooSlow,
    UnsupportedType,
    fault_text,
)
from pubswap_protocol.paths import PROBLEM_TYPE

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})

_BY_STATUS = {error.status: error for error in (Forbidden, NotFound, TooSlow, TooLarge)}

# A browser that opens an API URL must show nothing, run nothing, and guess no type.
SAFETY_HEADERS = {
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
}


def refusal(error: PubSwapError, scope: Scope, status: int | None = None) -> Response:
    """The problem+json response for an error, with the request's id."""
    problem = error.problem(scope.get("state", {}).get("request_id"))
    if status is not None:
        problem = problem.model_copy(update={"status": status})
    headers = {"WWW-Authenticate": "Bearer"} if problem.status == 401 else {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(math.ceil(error.retry_after))
    return Response(
        problem.model_dump_json(), problem.status, headers=headers, media_type=PROBLEM_TYPE
    )


def install(app: FastAPI) -> None:
    """Register the exception handlers for all routes."""
    for kind in (PubSwapError, RequestValidationError, HTTPException, OSError):
        app.add_exception_handler(kind, _answer)


async def _answer(request: Request, error: Exception) -> Response:
    status = None
    if isinstance(error, RequestValidationError):
        first, content_type = error.errors()[0], request.headers.get("Content-Type", "none")
        error = Invalid(fault_text(first))
        if first["loc"] == ("body",) and not _is_json(content_type):
            error = UnsupportedType(
                f"Send JSON as application/json; the Content-Type is {content_type}."
            )
    elif isinstance(error, HTTPException):
        status = error.status_code
        detail = f"{request.method} {request.url.path}: {error.detail}; see /openapi.json."
        error = _BY_STATUS.get(status, Invalid)(detail)
    elif isinstance(error, OSError) and error.errno in _FULL:
        words = "The coordinator's disk is full; the operator must make room."
        error = NoSpace(words, retry_after=30)
    if not isinstance(error, PubSwapError):
        raise error
    return refusal(error, request.scope, status)


def _is_json(content_type: str) -> bool:
    essence = content_type.partition(";")[0].strip().lower()
    return essence == "application/json" or (
        essence.startswith("application/") and essence.endswith("+json")
    )

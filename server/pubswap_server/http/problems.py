"""Every failure leaves as RFC 9457 problem+json with a stable code."""

import errno
import math

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from pubswap_protocol.errors import (
    Forbidden,
    Invalid,
    NoSpace,
    NotFound,
    ProblemDetails,
    PubSwapError,
    TooLarge,
    TooSlow,
    UnsupportedType,
    fault_text,
)
from pubswap_protocol.paths import PROBLEM_TYPE

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})

_BY_STATUS: dict[int, type[PubSwapError]] = {
    403: Forbidden,
    404: NotFound,
    408: TooSlow,
    413: TooLarge,
}


# A browser that is led here shows nothing, runs nothing, and guesses no type.
SAFETY_HEADERS = {
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
}


def problem_response(problem: ProblemDetails, retry_after: float | None = None) -> Response:
    """The reply that carries a problem; `retry_after` is in seconds."""
    headers = {"WWW-Authenticate": "Bearer"} if problem.status == 401 else {}
    if retry_after is not None:
        headers["Retry-After"] = str(math.ceil(retry_after))
    return Response(
        problem.model_dump_json(), problem.status, headers=headers, media_type=PROBLEM_TYPE
    )


def install(app: FastAPI) -> None:
    """Translate errors, once and for all routes."""
    app.add_exception_handler(PubSwapError, _expected)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(OSError, _disk)


def _request_id(request: Request) -> str | None:
    found: str | None = request.scope.get("state", {}).get("request_id")
    return found


async def _expected(request: Request, error: Exception) -> Response:
    assert isinstance(error, PubSwapError)
    return problem_response(error.problem(_request_id(request)), error.retry_after)


async def _disk(request: Request, error: Exception) -> Response:
    assert isinstance(error, OSError)
    if error.errno not in _FULL:
        raise error
    full = NoSpace("The coordinator's disk is full; the operator must make room.", retry_after=30)
    return await _expected(request, full)


async def _validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    given = request.headers.get("Content-Type", "none")
    if first["loc"] == ("body",) and not _is_json(given):
        unsupported = UnsupportedType(
            f"Send JSON as application/json; the Content-Type is {given}."
        )
        return problem_response(unsupported.problem(_request_id(request)))
    return problem_response(Invalid(fault_text(first)).problem(_request_id(request)))


def _is_json(content_type: str) -> bool:
    essence = content_type.partition(";")[0].strip().lower()
    return essence == "application/json" or (
        essence.startswith("application/") and essence.endswith("+json")
    )


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = _BY_STATUS.get(error.status_code, Invalid)
    asked = f"{request.method} {request.url.path}"
    problem = kind(f"{asked}: {error.detail}; see /openapi.json.").problem(_request_id(request))
    return problem_response(problem.model_copy(update={"status": error.status_code}))

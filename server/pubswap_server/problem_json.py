"""Every failure leaves as RFC 9457 problem+json with a stable code."""

import math

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from pubswap_protocol.errors import (
    Forbidden,
    Invalid,
    NotFound,
    Problem,
    PubSwapError,
    ServerFault,
    TooLarge,
)
from pubswap_protocol.paths import PROBLEM_TYPE

log = structlog.get_logger(__name__)

_BY_STATUS: dict[int, type[PubSwapError]] = {403: Forbidden, 404: NotFound, 413: TooLarge}


def problem_response(problem: Problem) -> Response:
    """The reply that carries a problem."""
    headers = {"WWW-Authenticate": "Bearer"} if problem.status == 401 else {}
    return Response(
        problem.model_dump_json(), problem.status, headers=headers, media_type=PROBLEM_TYPE
    )


def install(app: FastAPI) -> None:
    """Translate errors, once and for all routes."""
    app.add_exception_handler(PubSwapError, _expected)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unexpected)


def _request_id(request: Request) -> str | None:
    found: str | None = request.scope.get("state", {}).get("request_id")
    return found


async def _expected(request: Request, error: Exception) -> Response:
    assert isinstance(error, PubSwapError)
    response = problem_response(error.problem(_request_id(request)))
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(math.ceil(error.retry_after))
    return response


async def _validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    return problem_response(Invalid(f"{place}: {first['msg']}").problem(_request_id(request)))


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = _BY_STATUS.get(error.status_code, Invalid)
    asked = f"{request.method} {request.url.path}"
    problem = kind(f"{asked}: {error.detail}; see /openapi.json.").problem(_request_id(request))
    return problem_response(problem.model_copy(update={"status": error.status_code}))


async def _unexpected(request: Request, error: Exception) -> Response:
    log.error("request failed", exc_info=error)
    return problem_response(ServerFault().problem(_request_id(request)))

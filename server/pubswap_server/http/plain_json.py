"""JSON bodies that all parsers read alike: no NaN, duplicate keys or out-of-range numbers."""

import json
import math
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from pubswap_protocol.bounds import MAX_JSON_BYTES, unique_keys

MAX_DIGITS = 20


class PlainJsonRoute(APIRoute):
    """A route that parses its JSON body strictly."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_plain(request: Request) -> Response:
            return await handle(_PlainRequest(request.scope, request.receive))

        return handle_plain


class _PlainRequest(Request):
    _body: bytes

    async def body(self) -> bytes:
        """The whole body; raises HTTPException (413) if it is too large."""
        if not hasattr(self, "_body"):
            body = bytearray()
            async for piece in self.stream():
                body += piece
                if len(body) > MAX_JSON_BYTES:
                    raise HTTPException(413, f"a JSON body has at most {MAX_JSON_BYTES} bytes")
            self._body = bytes(body)
        return self._body

    async def json(self) -> Any:
        """The body; raises JSONDecodeError, which FastAPI answers as 422."""
        body = await self.body()
        try:
            return json.loads(
                body,
                parse_constant=_no_number,
                parse_int=_integer,
                parse_float=_finite,
                object_pairs_hook=unique_keys,
            )
        except json.JSONDecodeError:
            raise
        except (ValueError, RecursionError) as error:
            raise json.JSONDecodeError(str(error), "", 0) from None


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"an integer has more than {MAX_DIGITS} digits")
    return int(text)


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError("a number is too large")
    return value

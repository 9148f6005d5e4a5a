"""A blob as an answer: the whole file, a range of it, or 304 (RFC 9110, sections 13 and 14)."""

from collections.abc import Callable
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import FileResponse
from starlette.staticfiles import NotModifiedResponse
from starlette.types import Message, Receive, Scope, Send

from pubswap_protocol.errors import Invalid, OutOfRange, PubSwapError
from pubswap_server.http.problems import refusal
from pubswap_server.storage.spool import body_under_way, piece_bytes

_REFUSALS: dict[int, PubSwapError] = {
    400: Invalid("The Range is not like bytes=0-99."),
    OutOfRange.status: OutOfRange(),
}


class BlobResponse(FileResponse):
    """Starlette's answer with a file, named by its digest, whose refusals are problems."""

    max_ranges = 1  # several are answered with the whole file, as the RFC allows

    def __init__(
        self,
        path: Path,
        digest: str,
        media_type: str,
        on_start: Callable[[int], None] = lambda size: None,
    ) -> None:
        """The digest is the entity tag; `on_start` gets the bytes that are about to be sent."""
        # Under one address, such as that of the last round's adapter, come other bytes later.
        headers = {"ETag": f'"{digest}"', "Cache-Control": "private, no-cache"}
        super().__init__(path, headers=headers, media_type=media_type, stat_result=path.stat())
        self._on_start = on_start

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send 304 for a known digest; otherwise what the Range asks for."""
        if self.headers["ETag"] in Headers(scope=scope).get("If-None-Match", ""):
            await NotModifiedResponse(self.headers)(scope, receive, send)
            return
        refused = False

        async def sending(message: Message) -> None:
            nonlocal refused
            if message["type"] == "http.response.start":
                headers, status = Headers(raw=message["headers"]), message["status"]
                refused = status in _REFUSALS
                if refused:
                    reply = refusal(_REFUSALS[status], scope)
                    if "Content-Range" in headers:
                        reply.headers["Content-Range"] = headers["Content-Range"]
                    await reply(scope, receive, send)
                else:
                    self._on_start(int(headers["Content-Length"]))
            else:
                # Not of the first piece, Starlette's 64 KiB: many begin at once, and count later.
                self.chunk_size = piece_bytes()
            if not refused:
                await send(message)

        with body_under_way():
            await super().__call__(scope, receive, sending)

"""A blob as a response: the whole file, one range, or 304 (RFC 9110, sections 13 and 14)."""

from collections.abc import Callable
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import FileResponse
from starlette.staticfiles import NotModifiedResponse
from starlette.types import Message, Receive, Scope, Send

from pubswap_protocol.errors import Invalid, OutOfRange, PubSwapError
from pubswap_server.http.problems import refusal
from pubswap_server.storage.spool import BodyBudget

_REFUSALS: dict[int, PubSwapError] = {
    400: Invalid("The Range header must look like bytes=0-99."),
    OutOfRange.status: OutOfRange(),
}


class BlobResponse(FileResponse):
    """A `FileResponse` for a blob: the digest is its ETag, and its errors are problem+json."""

    max_ranges = 1  # a request for several gets the whole file, as the RFC allows

    def __init__(
        self,
        path: Path,
        digest: str,
        media_type: str,
        budget: BodyBudget,
        on_start: Callable[[int], None] = lambda size: None,
    ) -> None:
        """`digest` becomes the ETag; `on_start` gets the number of bytes about to be sent."""
        # no-cache, because a URL such as the last round's adapter returns other bytes later.
        headers = {"ETag": f'"{digest}"', "Cache-Control": "private, no-cache"}
        super().__init__(path, headers=headers, media_type=media_type, stat_result=path.stat())
        self._budget, self._on_start = budget, on_start

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send 304 if the client has the blob; otherwise the range it asks for, or the whole."""
        # The quotes make a match one whole ETag of the list.
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
                # The first piece keeps Starlette's 64 KiB: if many downloads start at once, the
                # first ones cannot see yet how many there are.
                self.chunk_size = self._budget.piece_bytes
            if not refused:
                await send(message)

        with self._budget.under_way():
            await super().__call__(scope, receive, sending)

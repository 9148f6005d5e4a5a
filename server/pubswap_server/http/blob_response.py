"""A blob as an answer: sent straight from the file's pages, without a copy of it in memory."""

import mmap
import re
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pubswap_protocol.errors import OutOfRange
from pubswap_server.http.problems import problem_response

_PIECE = 1 << 20
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


class BlobResponse(Response):
    """The whole file, the one range that is asked for, 304 or 416 (RFC 9110, sections 13 and 14).

    Several ranges in one request are answered with the whole file, as the RFC allows.
    """

    def __init__(self, path: Path, digest: str, asked: Headers, media_type: str) -> None:
        """`digest` is the entity tag; `asked` are the request's headers."""
        size = path.stat().st_size
        self._path = path
        self._first, self._end, status = _range(asked, digest, size)
        headers = {
            "Accept-Ranges": "bytes",
            "Cache-Control": "private, immutable",
            "Content-Length": str(self.length),
            "ETag": f'"{digest}"',
        }
        if status == 206:
            headers["Content-Range"] = f"bytes {self._first}-{self._end - 1}/{size}"
        if status == 416:
            headers["Content-Range"] = f"bytes */{size}"
        super().__init__(None, status, headers, media_type)

    @property
    def length(self) -> int:
        """Bytes of the body."""
        return self._end - self._first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the headers and the bytes; a GET only, for a HEAD has an answer of its own."""
        if self.status_code == OutOfRange.status:
            refusal = problem_response(OutOfRange().problem(scope["state"]["request_id"]))
            refusal.headers["Content-Range"] = self.headers["Content-Range"]
            await refusal(scope, receive, send)
            return
        start = {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }
        await send(start)
        if self.length:
            with self._path.open("rb") as file:
                pages = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
            for begin in range(self._first, self._end, _PIECE):
                piece = pages[begin : min(begin + _PIECE, self._end)]
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _range(asked: Headers, digest: str, size: int) -> tuple[int, int, int]:
    """First byte, end, and the status: 200 whole, 206 a part, 416 outside the file, 304 known."""
    tag = f'"{digest}"'
    if tag in asked.get("If-None-Match", ""):
        return 0, 0, 304
    found = _RANGE.fullmatch(asked.get("Range", ""))
    if found is None or found[0] == "bytes=-" or asked.get("If-Range", tag) != tag:
        return 0, size, 200
    if found[1]:
        first, end = int(found[1]), min(size, int(found[2] or size) + 1)
    else:
        first, end = max(0, size - int(found[2])), size
    return (first, end, 206) if first < end else (0, 0, 416)

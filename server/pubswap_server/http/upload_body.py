"""Upload bodies: append chunks to an upload, and store a complete one as a checked blob."""

import re

from fastapi import Request
from fastapi.concurrency import contextmanager_in_threadpool

from pubswap_protocol.errors import DigestMismatch, Invalid, LengthMismatch, TooLarge
from pubswap_protocol.tensors.adapter import sent_layout
from pubswap_protocol.tensors.update_encoding import open_update
from pubswap_server.database.tables import RunRow, UploadRow
from pubswap_server.services import Services
from pubswap_server.storage.spool import Received, Writer

_RANGE = re.compile(r"(\d{1,18})-(\d{1,18})")


def chunk_range(content_range: str, limit: int, size: int) -> tuple[int, int]:
    """The first byte's position and the number of bytes; raises Invalid or TooLarge."""
    match = _RANGE.fullmatch(content_range)
    if match is None:
        raise Invalid(f"Content-Range {content_range!r} does not look like 0-4194303.")
    first, last = int(match[1]), int(match[2])
    if last < first:
        raise Invalid(f"Content-Range {content_range!r} ends before it begins.")
    if last >= size:
        raise TooLarge(f"The upload was announced with {size} bytes; {last + 1} are too many.")
    if last - first >= limit:
        raise TooLarge(f"A chunk has at most {limit} bytes.")
    return first, last - first + 1


async def receive(services: Services, request: Request, limit: int) -> Received:
    """Stream a body to disk; raises TooLarge, or LengthMismatch if it is cut short."""
    length = request.headers.get("Content-Length")
    declared = None if length is None else int(length)
    return await services.incoming.receive(request.stream(), limit, declared)


async def append(
    services: Services, row: UploadRow, first: int, count: int, request: Request
) -> None:
    """Append the request's body, `count` bytes from `first` on; keep what arrives if it is cut.

    Raises WrongOffset, LengthMismatch, or Unavailable while another request sends.
    """
    appending = services.uploads.appending(row.id, first)
    async with contextmanager_in_threadpool(appending) as file:  # a busy disk is slow
        writer = Writer(file.fileno(), services.incoming.budget)
        with services.incoming.budget.under_way():
            try:
                async for piece in request.stream():
                    if writer.size + len(piece) > count:
                        raise LengthMismatch(
                            f"The body is longer than Content-Range's {count} bytes."
                        )
                    await writer.write(piece)
            finally:
                await writer.flush()
        if writer.size != count:
            raise LengthMismatch(f"The body has {writer.size} bytes, Content-Range {count}.")


def store_upload(services: Services, run: RunRow, upload: UploadRow) -> None:
    """Check an upload's bytes and keep them as a blob."""
    settings = run.settings
    layout = sent_layout(run.model.layout, settings.aggregation.rule)
    with services.uploads.assembled(upload.id, upload.size, upload.digest) as assembled:
        file = open_update(assembled.path, layout, settings.wire.precision, settings.min_rank)
        digest = file.digest()
        if digest != upload.digest:
            raise DigestMismatch(f"The bytes received are {digest}, not {upload.digest}.")
        services.blobs.keep(assembled.path, digest, in_place=assembled.in_place)

"""Resumable uploads of adapters, after the OCI distribution specification."""

from functools import partial
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Header, Query, Request, Response
from sqlalchemy.orm import Session

from pubswap_protocol import paths
from pubswap_protocol.bounds import Word
from pubswap_protocol.errors import (
    DigestMismatch,
    LengthMismatch,
    NoSpace,
    PubSwapError,
    Unavailable,
    UnknownUpload,
    WrongOffset,
)
from pubswap_protocol.messages import BlobReceipt, Digest, OpenUpload, UploadPart, UploadSession
from pubswap_server.database.tables import BlobRow, RunRow, UploadRow
from pubswap_server.http.bodies import CHUNK_REPLIES, UPDATE, binary_body
from pubswap_server.http.dependencies import ClientRun, Direct
from pubswap_server.http.plain_json import PlainJsonRoute
from pubswap_server.http.problems import refusal
from pubswap_server.http.upload_body import append, chunk_range, store_upload
from pubswap_server.runs import runs, uploads
from pubswap_server.services import Services

router = APIRouter(tags=["blobs"], route_class=PlainJsonRoute)

CHUNK_BYTES = 4 << 20  # of an upload's first chunk, and of the first after a cut
LARGEST_CHUNK_BYTES = 64 << 20
SMALL_CHUNK_BYTES = 64 << 10  # smaller ones count as requests, because each costs as much as one
_Session = partial(UploadSession, chunk_bytes=CHUNK_BYTES, largest_chunk_bytes=LARGEST_CHUNK_BYTES)

ContentRange = Annotated[
    str,
    Header(
        alias="Content-Range",
        max_length=200,
        description="First and last byte's position, inclusive and without unit or size, such as "
        "`0-4194303`.",
    ),
]


@router.post(
    paths.UPLOADS,
    status_code=201,
    summary="Open an upload",
    responses={200: {"model": UploadSession, "description": "The blob is already stored."}},
)
async def open_upload(
    run: ClientRun, body: OpenUpload, response: Response, direct: Direct = False
) -> UploadSession:
    """Reserves disk space, or returns the session already open for the same digest.

    409 `run_paused` during a pause, unless the upload has begun.
    """
    services = run.services

    def work(session: Session, row: RunRow) -> tuple[UploadRow | None, bool, list[str]]:
        spare, largest = services.settings.spare_bytes, runs.largest_update_of(row)
        free = services.blobs.free_bytes()
        return uploads.open_session(session, row, run.principal, body, largest, spare, free)

    try:
        upload_row, new, ended = await run.write(work)
    except NoSpace:
        services.changes.notify(run.name, awaited=False)  # so that the run shows why it waits
        raise
    for upload in ended:
        await to_thread.run_sync(services.uploads.drop, upload)
    if upload_row is None:
        response.status_code = 200
        return _Session(
            upload=None,
            digest=body.digest,
            size=body.size,
            offset=body.size,
            stored=True,
            expires_at=None,
        )
    return await _session(services, upload_row, direct, new)


async def _session(
    services: Services, row: UploadRow, direct: bool = False, new: bool = False
) -> UploadSession:
    offset = 0 if new else await to_thread.run_sync(services.uploads.offset, row.id)
    if offset > row.size:  # a presigned URL does not limit the size
        await to_thread.run_sync(services.uploads.drop, row.id)
        offset = 0
    parts: list[UploadPart] = []
    if direct and services.presigned is not None:
        signed = await to_thread.run_sync(services.presigned.parts, row.id, offset, row.size)
        parts = [UploadPart(first=first, size=size, url=url) for first, size, url in signed]
    return _Session(
        upload=row.id,
        digest=row.digest,
        size=row.size,
        offset=offset,
        parts=parts,
        stored=False,
        expires_at=row.expires_at,
    )


@router.get(paths.UPLOAD, summary="Get the status of an upload")
async def show_upload(run: ClientRun, upload: Word) -> UploadSession:
    """After a lost connection, continue from `offset`."""
    return await _session(run.services, await _find(run, upload))


async def _find(run: ClientRun, upload: str) -> UploadRow:
    return await run.read(lambda session, row: uploads.find(session, row, run.principal, upload))


@router.patch(
    paths.UPLOAD,
    status_code=202,
    summary="Send the next chunk",
    openapi_extra=binary_body(paths.BYTES_TYPE, f"The bytes of Content-Range.\n\n{UPDATE}"),
    response_class=Response,
    responses=CHUNK_REPLIES,
)
async def send_chunk(
    run: ClientRun, upload: Word, content_range: ContentRange, request: Request
) -> Response:
    """In order, one request at a time. Bytes received before a cut are kept."""
    row, services = await _find(run, upload), run.services
    first, count = chunk_range(content_range, LARGEST_CHUNK_BYTES, row.size)
    try:
        await append(services, row, first, count, request)
    except WrongOffset as error:
        offset = await to_thread.run_sync(services.uploads.offset, row.id)
        response = refusal(error, request.scope)
        if offset:
            response.headers["Range"] = f"0-{offset - 1}"
        return response
    if count >= SMALL_CHUNK_BYTES or first + count == row.size:
        services.limits.members.charge(run.principal.id, -1)  # quotas limit chunks, not a rate
    return Response(status_code=202, headers={"Range": f"0-{first + count - 1}"})


@router.put(paths.UPLOAD, status_code=201, summary="Finish an upload")
async def finish_upload(
    run: ClientRun,
    upload: Word,
    digest: Annotated[Digest, Query(description="The digest that the bytes must have.")],
) -> BlobReceipt:
    """Checks digest, header, names, shapes, dtype, size and finite numbers.

    The receipt means that the blob is on disk. Repeating the request returns the same receipt.
    """
    member, services = run.principal, run.services

    def find(session: Session, row: RunRow) -> tuple[RunRow, UploadRow | None, BlobRow | None]:
        blob = session.get(BlobRow, (row.id, digest, member.name))
        if blob is not None:
            return row, None, blob
        upload_row = uploads.find(session, row, member, upload)
        uploads.require_turn(session, row, member)
        return row, upload_row, None

    row, upload_row, blob = await run.read(find)
    if upload_row is None:
        return BlobReceipt(digest=digest, size=blob.size if blob else 0)
    if upload_row.digest != digest:
        raise DigestMismatch(f"The upload was announced as {upload_row.digest}, not {digest}.")
    if upload_row.id in services.finishing:  # by a request whose client has left
        raise Unavailable("This upload is already being checked; ask again.", retry_after=2)
    services.finishing.add(upload_row.id)
    try:
        await _store(run, row, upload_row)
    finally:
        services.finishing.discard(upload_row.id)
    return BlobReceipt(digest=digest, size=upload_row.size)


async def _store(run: ClientRun, of: RunRow, row: UploadRow) -> None:
    """Check the bytes, store them, and record the upload as a blob."""
    services = run.services
    try:
        await to_thread.run_sync(store_upload, services, of, row, limiter=services.checks)
    except PubSwapError as error:
        if not error.retryable and not isinstance(error, LengthMismatch | UnknownUpload):
            await _forget(services, row.id)
        raise
    member = run.principal
    await run.write(lambda session, run_row: uploads.finish(session, run_row, member, row))
    await to_thread.run_sync(services.uploads.drop, row.id)


@router.delete(paths.UPLOAD, status_code=204, summary="Cancel an upload")
async def give_up_upload(run: ClientRun, upload: Word) -> Response:
    """Deletes its bytes and frees its space."""
    row = await _find(run, upload)
    await _forget(run.services, row.id)
    return Response(status_code=204)


async def _forget(services: Services, upload: str) -> None:
    await services.database.write(lambda session: uploads.forget(session, upload))
    await to_thread.run_sync(services.uploads.drop, upload)

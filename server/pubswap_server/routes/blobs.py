"""Adapters as blobs, named by their digests."""

from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Path, Request, Response
from sqlalchemy import or_, select
from sqlalchemy.orm import Session
from starlette.responses import FileResponse

from pubswap_protocol import paths
from pubswap_protocol.adapter import AdapterFile, AdapterLayout
from pubswap_protocol.errors import DigestMismatch, UnknownBlob
from pubswap_protocol.messages import BlobReceipt, Role
from pubswap_protocol.tensors import MAX_HEADER_BYTES
from pubswap_server import runs, traffic
from pubswap_server.auth import Member
from pubswap_server.blobs import Received
from pubswap_server.dependencies import ClientDep, DeclaredLength, MemberDep, ServicesDep
from pubswap_server.routes.bodies import ADAPTER, TENSORS_REPLY, binary_body
from pubswap_server.services import Services
from pubswap_server.tables import BlobRow, RoundRow, RunRow

router = APIRouter(tags=["blobs"])

BlobName = Annotated[str, Path(pattern=r"^sha256:[0-9a-f]{64}$")]


@router.put(
    paths.BLOB,
    operation_id="put_blob",
    status_code=201,
    summary="Send an adapter",
    openapi_extra=binary_body(paths.TENSORS_TYPE, ADAPTER),
)
async def put_blob(
    run: str,
    digest: BlobName,
    request: Request,
    declared: DeclaredLength,
    member: ClientDep,
    services: ServicesDep,
) -> BlobReceipt:
    """Checked before it is kept: header, names, shapes, dtype, size, finite numbers."""
    row = await services.database.read(lambda session: runs.find(session, run, member))
    layout = runs.sent_layout_of(row)
    expected = MAX_HEADER_BYTES + layout.file_bytes
    limit = min(services.settings.max_adapter_bytes, expected)
    received = await services.blobs.receive(request.stream(), limit, declared)
    try:
        if received.digest != digest:
            raise DigestMismatch(f"The bytes received are {received.digest}, not {digest}.")
        canonical = await to_thread.run_sync(_store, services, received, layout)
    finally:
        received.discard()

    def note(session: Session) -> None:
        session.merge(
            BlobRow(
                run_id=row.id,
                digest=digest,
                member=member.name,
                canonical=canonical,
                size=received.size,
            )
        )
        traffic.count(session, row.id, row.round, member.name, "adapters_up", received.size)

    await services.database.write(note)
    return BlobReceipt(digest=digest, size=received.size)


def _store(services: Services, received: Received, layout: AdapterLayout) -> str:
    """Check a file, and write it back canonically; returns the canonical file's digest."""
    file = AdapterFile(received.path, layout)
    file.check_finite()
    return services.blobs.write(file.canonical())[0]


@router.head(paths.BLOB, operation_id="has_blob", summary="Whether an adapter is stored")
async def has_blob(
    run: str, digest: BlobName, member: MemberDep, services: ServicesDep
) -> Response:
    """404 if it must be sent."""
    _, stored = await services.database.read(lambda session: _visible(session, run, digest, member))
    size = services.blobs.path(stored).stat().st_size
    headers = {"ETag": f'"{digest}"', "X-Size": str(size), "Accept-Ranges": "bytes"}
    return Response(status_code=200, headers=headers)


@router.get(
    paths.BLOB,
    operation_id="get_blob",
    summary="An adapter's bytes",
    response_class=Response,
    responses=TENSORS_REPLY,
)
async def get_blob(
    run: str, digest: BlobName, request: Request, member: MemberDep, services: ServicesDep
) -> Response:
    """Takes Range and If-None-Match. Members see the global adapters and what they sent."""
    row, stored = await services.database.read(
        lambda session: _visible(session, run, digest, member)
    )
    headers = {"ETag": f'"{digest}"', "Cache-Control": "private, immutable"}
    if digest in request.headers.get("If-None-Match", ""):
        return Response(status_code=304, headers=headers)
    path = services.blobs.path(stored)
    if member.role is Role.CLIENT:
        size = path.stat().st_size
        await services.database.write(
            lambda session: traffic.count(
                session, row.id, row.round, member.name, "adapters_down", size
            )
        )
    return FileResponse(path, media_type=paths.TENSORS_TYPE, headers=headers)


def _visible(session: Session, run: str, digest: str, member: Member) -> tuple[RunRow, str]:
    """The run, and the stored file's digest; raises UnknownBlob unless the member may see it."""
    row = runs.find(session, run, member)
    sent = session.get(BlobRow, (row.id, digest, member.name))
    if sent is not None:
        return row, sent.canonical
    published = session.scalar(
        select(RoundRow).where(
            RoundRow.run_id == row.id,
            or_(RoundRow.adapter == digest, RoundRow.residual == digest),
        )
    )
    if published is None:
        raise UnknownBlob(f"The blob {digest} is not stored for you.")
    return row, digest

"""Adapters as blobs, named by their digests."""

from contextlib import suppress
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from pubswap_protocol import digests, paths
from pubswap_protocol.bounds import Word
from pubswap_protocol.errors import UnknownBlob
from pubswap_protocol.messages import Role
from pubswap_server.database.tables import BlobRow, RoundRow, RunRow, UpdateRow
from pubswap_server.http.blob_response import BlobResponse
from pubswap_server.http.bodies import BLOB_REPLIES, CONDITIONAL
from pubswap_server.http.dependencies import Direct, MemberDep, ServicesDep
from pubswap_server.http.plain_json import PlainJsonRoute
from pubswap_server.runs import runs
from pubswap_server.runs.auth import MemberPrincipal

router = APIRouter(tags=["blobs"], route_class=PlainJsonRoute)


BlobName = Annotated[str, Path(pattern=digests.PATTERN)]


@router.get(
    paths.BLOB,
    summary="Download an adapter",
    response_class=Response,
    responses=BLOB_REPLIES,
    openapi_extra=CONDITIONAL,
)
async def get_blob(
    run: Word,
    digest: BlobName,
    member: MemberDep,
    services: ServicesDep,
    request: Request,
    direct: Direct = False,
) -> Response:
    """Supports Range and If-None-Match. Members see the global adapters, and their own adapters of
    this round and kept updates."""
    row = await services.database.read(lambda session: _visible(session, run, digest, member))

    def count(size: int) -> None:
        if member.role is Role.CLIENT:
            services.heartbeats.downloaded(member, row.round, "adapters_down", size)

    if direct and services.presigned is not None:
        with suppress(FileNotFoundError):  # reported below
            url, size = await to_thread.run_sync(services.presigned.blob, digest)
            if "Range" not in request.headers:  # a range continues a download that was counted
                count(size)
            return RedirectResponse(url, headers={"Cache-Control": "private, no-store"})
    path = await to_thread.run_sync(services.blobs.path, digest)
    return BlobResponse(path, digest, paths.TENSORS_TYPE, services.incoming.budget, count)


def _visible(session: Session, run: str, digest: str, member: MemberPrincipal) -> RunRow:
    """The run; raises UnknownBlob unless the member may see the blob."""
    row = runs.find(session, run, member)
    sent = select(BlobRow.digest).where(
        BlobRow.run_id == row.id, BlobRow.digest == digest, BlobRow.member == member.name
    )
    stored = select(UpdateRow.stored).where(
        UpdateRow.run_id == row.id, UpdateRow.member == member.name, UpdateRow.stored == digest
    )
    published = select(RoundRow.round).where(RoundRow.run_id == row.id, RoundRow.adapter == digest)
    if not session.scalar(select(or_(sent.exists(), stored.exists(), published.exists()))):
        raise UnknownBlob(f"The blob {digest} does not exist, or is not yours to read.")
    return row

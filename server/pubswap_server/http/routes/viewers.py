"""Viewers: people with read-only access to the dashboard."""

from fastapi import APIRouter, Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from pubswap_protocol import paths
from pubswap_protocol.bounds import Word
from pubswap_protocol.errors import NameTaken, NotFound
from pubswap_protocol.messages import CreateViewer, Viewer, ViewerList, ViewerToken
from pubswap_server.database.tables import ViewerRow
from pubswap_server.http.dependencies import OperatorDep, ServicesDep
from pubswap_server.http.plain_json import PlainJsonRoute
from pubswap_server.runs.auth import new_secret, sha256

router = APIRouter(tags=["viewers"], route_class=PlainJsonRoute)


@router.post(paths.VIEWERS, status_code=201, summary="Add a viewer of the dashboard")
async def create_viewer(_: OperatorDep, services: ServicesDep, body: CreateViewer) -> ViewerToken:
    """Only this answer shows the token. It is valid only for signing in to the dashboard."""

    def work(session: Session) -> ViewerToken:
        name, token = body.name, new_secret()
        if session.get(ViewerRow, name) is not None:
            raise NameTaken(f"There is a viewer {name!r} already; remove it first for a new token.")
        row = ViewerRow(name=name, token_sha256=sha256(token))
        session.add(row)
        session.flush()
        return ViewerToken(name=name, created_at=row.created_at, token=token)

    return await services.database.write(work)


@router.get(paths.VIEWERS, summary="List the viewers of the dashboard")
async def list_viewers(_: OperatorDep, services: ServicesDep) -> ViewerList:
    """By name, without their tokens."""

    def work(session: Session) -> ViewerList:
        rows = session.scalars(select(ViewerRow).order_by(ViewerRow.name))
        return ViewerList(viewers=[Viewer(name=r.name, created_at=r.created_at) for r in rows])

    return await services.database.read(work)


@router.delete(paths.VIEWER, status_code=204, summary="Remove a viewer", responses={404: {}})
async def delete_viewer(_: OperatorDep, services: ServicesDep, viewer: Word) -> Response:
    """Ends its sessions at once."""

    def work(session: Session) -> None:
        row = session.get(ViewerRow, viewer)
        if row is None:
            raise NotFound(f"There is no viewer {viewer!r}.")
        session.delete(row)

    await services.database.write(work)
    return Response(status_code=204)

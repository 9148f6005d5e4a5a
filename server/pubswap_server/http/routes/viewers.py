"""Viewers of the dashboard."""

from fastapi import APIRouter, Response

from pubswap_protocol import paths
from pubswap_protocol.bounds import Word
from pubswap_protocol.messages import CreateViewer, ViewerList, ViewerToken
from pubswap_server.http.dependencies import OperatorDep, ServicesDep
from pubswap_server.http.plain_json import PlainJsonRoute
from pubswap_server.runs import viewers

router = APIRouter(tags=["viewers"], route_class=PlainJsonRoute)


@router.post(paths.VIEWERS, status_code=201, summary="Let somebody look at the dashboard")
async def create_viewer(_: OperatorDep, services: ServicesDep, body: CreateViewer) -> ViewerToken:
    """The token in the answer is shown once; it serves to sign in there, and nowhere else."""
    return await services.database.write(lambda session: viewers.add(session, body.name))


@router.get(paths.VIEWERS, summary="Who may look at the dashboard")
async def list_viewers(_: OperatorDep, services: ServicesDep) -> ViewerList:
    """By name, without their tokens."""
    return await services.database.read(lambda session: ViewerList(viewers=viewers.views(session)))


@router.delete(
    paths.VIEWER, status_code=204, summary="Let a viewer look no more", responses={404: {}}
)
async def delete_viewer(_: OperatorDep, services: ServicesDep, viewer: Word) -> Response:
    """Its sessions end at once."""
    await services.database.write(lambda session: viewers.remove(session, viewer))
    return Response(status_code=204)

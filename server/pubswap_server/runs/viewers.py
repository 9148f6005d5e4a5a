"""Viewers: people whom the operator lets look at the dashboard."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from pubswap_protocol.errors import NameTaken, NotFound
from pubswap_protocol.messages import Viewer, ViewerToken
from pubswap_server.database.tables import ViewerRow
from pubswap_server.runs.auth import new_secret, sha256


def add(session: Session, name: str) -> ViewerToken:
    """A new viewer with a token; raises NameTaken."""
    if session.get(ViewerRow, name) is not None:
        raise NameTaken(f"There is a viewer {name!r} already; remove it first for a new token.")
    token = new_secret()
    row = ViewerRow(name=name, token_sha256=sha256(token))
    session.add(row)
    session.flush()
    return ViewerToken(name=name, created_at=row.created_at, token=token)


def views(session: Session) -> list[Viewer]:
    """All viewers, by name."""
    rows = session.scalars(select(ViewerRow).order_by(ViewerRow.name))
    return [Viewer(name=row.name, created_at=row.created_at) for row in rows]


def remove(session: Session, name: str) -> None:
    """End a viewer's token, and its sessions; raises NotFound."""
    row = session.get(ViewerRow, name)
    if row is None:
        raise NotFound(f"There is no viewer {name!r}.")
    session.delete(row)


def exists(session: Session, token_sha256: str) -> bool:
    """Whether a token with this hash is a viewer's."""
    query = select(ViewerRow.name).where(ViewerRow.token_sha256 == token_sha256)
    return session.scalar(query) is not None

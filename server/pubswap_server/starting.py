"""What `pubswap serve` needs before it opens its port: its folder, its database and its blobs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog
from sqlalchemy import make_url
from sqlalchemy.exc import SQLAlchemyError

from pubswap_protocol.command_line.locking import Held, lock
from pubswap_protocol.errors import StateInUse
from pubswap_server.database.engine import migrate
from pubswap_server.database.errors import unusable
from pubswap_server.settings import ServerSettings, operator_token
from pubswap_server.storage.opening import make_storage
from pubswap_server.storage.private import make_private

log = structlog.get_logger(__name__)


@contextmanager
def prepared(settings: ServerSettings) -> Iterator[None]:
    """Bring the database up to date, see that the blob store answers, and keep SQLite for itself.

    Raises StateInUse while another coordinator serves the same SQLite database: neither would hear
    of the other's changes. The workers of one coordinator do, and belong to the process that holds
    the lock. Raises Unavailable for a database or a store that does not answer.
    """
    if not make_private(settings.data_dir):
        log.warning("others on this machine can look into the data folder; chmod 700 it")
    operator_token(settings)
    with _alone(settings.sqlalchemy_url):
        try:
            migrate(settings.sqlalchemy_url)
        except SQLAlchemyError as error:
            raise unusable(settings.sqlalchemy_url, error) from None
        storage = make_storage(settings)
        try:
            storage.blobs.check()
        finally:
            storage.incoming.close()
        yield


@contextmanager
def _alone(url: str) -> Iterator[None]:
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite" or not parsed.database:
        yield
        return
    database = Path(parsed.database)
    make_private(database.parent)
    try:
        with lock(database.with_name(f"{database.name}.lock")):
            yield
    except Held as other:
        raise StateInUse(
            f"{database} is served by another coordinator (process {other}). Stop that one, use "
            "--workers N for more processes, or PostgreSQL for several coordinators."
        ) from None

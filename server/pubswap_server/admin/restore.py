"""Restore a backup to an empty coordinator, on any database and store."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.progress import Progress
from sqlalchemy import Connection, Engine, create_engine, delete, func, insert, select

from pubswap_protocol.command_line.progress_bar import tracked
from pubswap_protocol.digests import digest_of_file
from pubswap_protocol.errors import BackupFault
from pubswap_protocol.files import create_durably, make_private
from pubswap_server.admin.manifest import TOKEN, BackupManifest, copy_blob, read_manifest
from pubswap_server.admin.opened import Deployment, opened
from pubswap_server.admin.verify import required
from pubswap_server.conductor.ownership import deployment_of
from pubswap_server.database.engine import migrate, newest_schema, upgradable_schemas
from pubswap_server.database.tables import Base, DeploymentRow
from pubswap_server.settings import ServerSettings, sqlite_url
from pubswap_server.storage.spool import Spool
from pubswap_server.storage.store import file_name, folder_name

# A backup does not have the bytes of unfinished uploads; members start them again. Leases are held
# by replicas of the coordinator that was backed up, and tombstones belong to its store.
SKIPPED_TABLES = frozenset({"uploads", "leases", "unnamed_blobs"})
_OF_AN_EMPTY_ONE = frozenset({"deployment", "unnamed_blobs"})
_AT_ONCE = 500


def copy_rows(source: Connection, target: Connection) -> dict[str, int]:
    """Copy all tables but `SKIPPED_TABLES` into empty ones, in batches; returns their row counts.

    Tables are in the order of their foreign keys. Nothing is committed.
    """
    counts = {}
    for table in Base.metadata.sorted_tables:
        if table.name in SKIPPED_TABLES:
            continue
        statement, counts[table.name] = insert(table), 0
        query = select(table).order_by(*table.primary_key)
        rows = source.execute(query, execution_options={"yield_per": _AT_ONCE})
        for part in rows.mappings().partitions():
            target.execute(statement, [dict(row) for row in part])
            counts[table.name] += len(part)
    return counts


def reset_sequences(connection: Connection) -> None:
    """Have PostgreSQL number new rows after the copied ones; SQLite does so by itself."""
    if connection.dialect.name != "postgresql":
        return
    for table in Base.metadata.sorted_tables:
        column = table.autoincrement_column
        last = connection.scalar(select(func.max(column))) if column is not None else None
        if column is not None and last is not None:
            sequence = func.pg_get_serial_sequence(table.name, column.name)
            connection.execute(select(func.setval(sequence, last)))


def count_rows(connection: Connection) -> dict[str, int]:
    """The rows of each table, but for those that a coordinator writes at its first start."""
    present = set(connection.dialect.get_table_names(connection)) - _OF_AN_EMPTY_ONE
    tables = [table for table in Base.metadata.sorted_tables if table.name in present]
    return {t.name: connection.scalar(select(func.count()).select_from(t)) or 0 for t in tables}


def restore(settings: ServerSettings, folder: Path, progress: Progress) -> BackupManifest:
    """Restore the backup in `folder` to the empty database and store of the settings.

    The whole backup is checked before anything is written. Blobs come first and rows last, in one
    transaction, so an interrupted restore can be repeated. Raises BackupFault, InvalidSettings or
    Unavailable.
    """
    manifest = read_manifest(folder)
    if manifest.schema_revision not in upgradable_schemas():
        raise BackupFault(
            f"The backup has schema {manifest.schema_revision} of PubSwap {manifest.software}; "
            "install that version or a later one to restore it."
        )
    home, backup = settings.data_dir.resolve(), folder.resolve()
    if backup in (home, *home.parents):  # where the coordinator would sweep the backup's blobs
        raise BackupFault(f"{home} is the backup itself, or in it; restore to another folder.")
    token = _token(folder) if manifest.operator_token else None
    make_private(settings.data_dir)
    with opened(settings) as deployment:
        incoming = deployment.storage.incoming
        database = folder / manifest.database.file
        if not database.is_file() or digest_of_file(database) != manifest.database.digest:
            raise BackupFault(f"{database} is missing or damaged; restore another backup.")
        for digest in tracked(progress, "checking blobs", sorted(manifest.blobs)):
            file = _blob_file(folder, digest)
            if not file.is_file() or digest_of_file(file) != digest:
                raise BackupFault(
                    f"The blob {digest} is missing or damaged; restore another backup."
                )
        with _rows_of(folder, manifest, incoming) as rows:
            with rows.connect() as connection:
                unknown = set(required(connection)) - set(manifest.blobs) - set(manifest.missing)
            if unknown:
                raise BackupFault(
                    f"The manifest lacks {len(unknown)} blobs of its database, such as "
                    f"{min(unknown)}; restore another backup."
                )
            with rows.connect() as connection:
                own = connection.scalar(select(DeploymentRow.id))
            _check_empty(settings, deployment, manifest, own)
            for digest in tracked(progress, "copying blobs", sorted(manifest.blobs)):
                copy_blob(_blob_file(folder, digest), digest, deployment.blobs)
            if token is not None:
                create_durably(settings.token_file, token)
            migrate(settings.sqlalchemy_url)
            if own is not None:  # not in backups of before there were ids
                deployment.blobs.hand_over(own)
            _load(deployment, rows)
    return manifest


def _blob_file(folder: Path, digest: str) -> Path:
    """A blob's file in a backup, found without a store because the backup may be read-only."""
    return folder / "blobs" / folder_name(digest) / file_name(digest)


@contextmanager
def _rows_of(folder: Path, manifest: BackupManifest, incoming: Spool) -> Iterator[Engine]:
    """The backup's rows, copied and migrated to this version's schema; the backup is only read."""
    file = incoming.new()
    shutil.copyfile(folder / manifest.database.file, file)
    url = sqlite_url(file)
    engine = create_engine(url)
    try:
        if manifest.schema_revision != newest_schema():
            migrate(url)
        yield engine
    finally:
        engine.dispose()
        file.unlink()


def _check_empty(
    settings: ServerSettings, deployment: Deployment, manifest: BackupManifest, own: str | None
) -> None:
    """Raises BackupFault unless the target is empty, or partly filled from this backup."""
    with deployment.database.engine.connect() as connection:
        full = [table for table, count in count_rows(connection).items() if count]
    if full:
        raise BackupFault(
            f"The database is not empty: it has rows in {', '.join(full)}. Restore to a new one "
            "(--data-dir, --database-url); nothing was restored."
        )
    where = settings.blob_url or settings.data_dir / "blobs"
    owner = deployment.blobs.owner()
    if owner not in (None, own, deployment_of(deployment.database.engine)):
        raise BackupFault(
            f"{where} belongs to another deployment, {owner}. Restore to a new place (--data-dir, "
            "--blob-url); nothing was restored."
        )
    others = [blob.name for blob in deployment.blobs.blobs() if blob.name not in manifest.blobs]
    if others:
        raise BackupFault(
            f"{where} holds {len(others)} blobs that are not in this backup. Restore to a new "
            "place (--data-dir, --blob-url); nothing was restored."
        )


def _load(deployment: Deployment, rows: Engine) -> None:
    writing = deployment.database.engine.execution_options(immediate=True)
    with rows.connect() as source, writing.begin() as target:
        if any(count_rows(target).values()):
            raise BackupFault("Somebody wrote to the database meanwhile; restore to a new one.")
        if source.scalar(select(DeploymentRow.id)) is not None:  # in place of an empty one's
            target.execute(delete(DeploymentRow))
        copy_rows(source, target)
        reset_sequences(target)


def _token(folder: Path) -> bytes:
    try:
        return (folder / TOKEN).read_bytes()
    except OSError as error:
        raise BackupFault(
            f"The operator token in {folder / TOKEN} cannot be read: {error.strerror}. Copy it "
            "from where the backup was made, as its owner; nothing was restored."
        ) from None

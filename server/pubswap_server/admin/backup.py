"""Back up to a folder: a snapshot of all tables, and every blob that they rely on.

Everything is written under names that a finished backup does not use. The manifest comes last and
replaces the earlier one atomically, so the folder always is one complete backup or none.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from rich.progress import Progress
from sqlalchemy import create_engine

from pubswap_protocol import __version__
from pubswap_protocol.command_line.locking import LockHeld, lock
from pubswap_protocol.command_line.progress_bar import tracked
from pubswap_protocol.digests import digest_of_file, hexadecimal
from pubswap_protocol.errors import BackupFault, DamagedBlob
from pubswap_protocol.files import publish
from pubswap_server.admin.manifest import (
    DATABASES,
    NAME,
    TOKEN,
    BackupManifest,
    DatabaseFile,
    copy_blob,
    write_manifest,
)
from pubswap_server.admin.opened import Deployment, opened_in_use
from pubswap_server.admin.restore import copy_rows
from pubswap_server.admin.verify import required
from pubswap_server.database.engine import migrate, newest_schema
from pubswap_server.settings import ServerSettings, sqlite_url
from pubswap_server.storage.local import LocalBlobs
from pubswap_server.storage.spool import Spool

_TRIES = 3
_SHOWN = 5


@dataclass(frozen=True)
class Folder:
    path: Path
    blobs: LocalBlobs
    incoming: Spool


@dataclass
class CopiedRows:
    """A snapshot of the rows, in a file, and the blobs they rely on."""

    file: Path
    made_at: datetime
    rows: dict[str, int]
    needed: set[str]
    sizes: dict[str, int] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  # with the reason


def backup(
    settings: ServerSettings,
    folder: Path,
    progress: Progress,
    *,
    with_token: bool = False,
    allow_missing: bool = False,
) -> BackupManifest:
    """Back up the coordinator to `folder`; it may keep serving.

    Only new blobs are copied if the folder has an earlier backup.
    Raises BackupFault, InvalidSettings or Unavailable, and then leaves an earlier backup as it was.
    """
    token = _token(settings) if with_token else None
    with _writing(folder) as into, opened_in_use(settings, into.incoming.folder) as deployment:
        for _ in range(_TRIES):
            moment = _take_moment(deployment, into.incoming)
            _copy_blobs(deployment, into, moment, progress)
            # A blob may have been released and deleted since the snapshot. That is no loss, but
            # then the rows need a later snapshot.
            with deployment.database.snapshot() as connection:
                if not moment.missing.keys() - required(connection).keys():
                    break
        if moment.missing and not allow_missing:
            some = "; ".join(sorted(moment.missing.values())[:_SHOWN])
            more = len(moment.missing) - _SHOWN
            raise BackupFault(
                f"{len(moment.missing)} blobs cannot be backed up: {some}"
                f"{f'; and {more} more' if more > 0 else ''}. `pubswap admin verify` lists what "
                "relies on them; --allow-missing makes the backup without them."
            )
        return finish(into, moment, token)


def _take_moment(deployment: Deployment, incoming: Spool) -> CopiedRows:
    """Copy a snapshot of the rows into a new SQLite file."""
    file = incoming.new()
    url = sqlite_url(file)
    migrate(url)
    target = create_engine(url)
    try:
        with deployment.database.snapshot() as source, target.begin() as writing:
            made_at = datetime.now(UTC)
            return CopiedRows(file, made_at, copy_rows(source, writing), set(required(source)))
    finally:
        target.dispose()


def _copy_blobs(
    deployment: Deployment, into: Folder, moment: CopiedRows, progress: Progress
) -> None:
    """Copy every blob into the backup; those already there are only checked."""
    for digest in tracked(progress, "blobs", sorted(moment.needed)):
        try:
            moment.sizes[digest] = keep_blob(deployment, into, digest)
        except DamagedBlob as error:
            moment.missing[digest] = error.detail


def keep_blob(deployment: Deployment, into: Folder, digest: str) -> int:
    with suppress(DamagedBlob):
        return into.blobs.path(digest).stat().st_size
    try:
        return copy_blob(deployment.blobs.path(digest), digest, into.blobs)
    finally:
        deployment.forget_fetched()


def finish(into: Folder, moment: CopiedRows, token: bytes | None) -> BackupManifest:
    digest = digest_of_file(moment.file)
    name = DATABASES.replace("*", hexadecimal(digest)[:16])  # not the earlier backup's
    size = moment.file.stat().st_size
    publish(moment.file, into.path / name)
    if token is not None:
        temporary = into.incoming.new()  # for its owner only, as mkstemp makes files
        temporary.write_bytes(token)
        publish(temporary, into.path / TOKEN)
    manifest = BackupManifest(
        software=__version__,
        schema_revision=newest_schema(),
        made_at=moment.made_at,
        database=DatabaseFile(file=name, digest=digest, size=size),
        rows=moment.rows,
        blobs=moment.sizes,
        missing=sorted(moment.missing),
        operator_token=token is not None,
    )
    write_manifest(into.path, manifest, into.incoming.new())
    prune(into, manifest)
    return manifest


def prune(into: Folder, manifest: BackupManifest) -> None:
    """Remove files that only the earlier backup needed."""
    for path in into.path.glob(DATABASES):
        if path.name != manifest.database.file:
            path.unlink()
    for blob in list(into.blobs.blobs()):
        if blob.name not in manifest.blobs:
            into.blobs.remove_older(blob.name, float("inf"))
    if not manifest.operator_token:
        (into.path / TOKEN).unlink(missing_ok=True)


def _token(settings: ServerSettings) -> bytes:
    if settings.operator_token is not None:
        raise BackupFault(
            "The operator token comes from PUBSWAP_OPERATOR_TOKEN, so there is no file to back up. "
            "Back the variable up yourself, and omit --with-token."
        )
    try:
        return settings.token_file.read_bytes()
    except OSError as error:
        raise BackupFault(
            f"The operator token in {settings.token_file} cannot be read: {error.strerror}."
        ) from None


@contextmanager
def _writing(folder: Path) -> Iterator[Folder]:
    """Create the folder if needed, and lock it; raises BackupFault if it holds other things."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    allowed = {"blobs", "incoming", NAME, ".lock", TOKEN} | {p.name for p in folder.glob(DATABASES)}
    others = sorted({path.name for path in folder.iterdir()} - allowed)
    if others:
        raise BackupFault(f"{folder} holds other things, such as {others[0]}; name a new folder.")
    try:
        with lock(folder / ".lock"), closing(Spool(folder / "incoming")) as incoming:
            yield Folder(folder, LocalBlobs(folder / "blobs", incoming), incoming)
    except LockHeld:
        raise BackupFault(f"Another backup into {folder} is under way; wait for it.") from None

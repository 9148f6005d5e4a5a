"""Translate SQLAlchemy errors: unavailable, full, or based on an old state."""

from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoConnectionFree
from sqlalchemy.orm.exc import StaleDataError

from pubswap_protocol.errors import Fenced, NoSpace, PubSwapError, Unavailable

RETRY_AFTER_SECONDS = 1.0

_FULL = ("database or disk is full", "No space left on device", "could not extend file")
_DISK_FULL = "53100"
# Serialization failure, deadlock, a unique key that another transaction took meanwhile.
_COLLISIONS = frozenset({"40001", "40P01", "23505"})
# PostgreSQL's transient errors. Classes: connection, resources, operator intervention, system.
# Codes: the server became a standby, a transaction was idle too long, a lock came too late.
_PASSING = ("08", "53", "57", "58")
_PASSING_CODES = frozenset({"25006", "25P03", "55P03"})


def collided(error: Exception) -> bool:
    """Whether a retry of the transaction may succeed or find out what is wrong."""
    return isinstance(error, IntegrityError) or _state(error) in _COLLISIONS


def lost(error: Exception) -> bool:
    """Whether the connection was lost, as all of a pool are when the database restarts."""
    return isinstance(error, DBAPIError) and error.connection_invalidated


def fault_of(error: SQLAlchemyError) -> PubSwapError | None:
    """The error with which to answer; None for a bug of our own."""
    if isinstance(error, StaleDataError):
        return Fenced("Another change of the run came first; try again.", retry_after=0)
    if isinstance(error, NoConnectionFree):
        return _unavailable("All connections to the database are in use.")
    if not isinstance(error, DBAPIError):
        return None
    text, state = str(error.orig), _state(error)
    if state == _DISK_FULL or any(words in text for words in _FULL):
        return NoSpace("The coordinator's database has no room; the operator must make some.")
    kind = type(error.orig).__name__
    passing = state.startswith(_PASSING) or state in _PASSING_CODES
    if error.connection_invalidated or passing or (kind == "OperationalError" and not state):
        return _unavailable("The database does not answer.")
    return _unavailable("The database is busy.") if collided(error) and state else None


def unusable(url: str, error: SQLAlchemyError) -> PubSwapError:
    """A database's error for the operator, without the password."""
    fault = fault_of(error)
    if isinstance(fault, NoSpace):
        return fault
    name = make_url(url).render_as_string(hide_password=True)
    reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
    return Unavailable(f"The database {name} cannot be used: {reason}")


def _unavailable(detail: str) -> Unavailable:
    return Unavailable(detail, retry_after=RETRY_AFTER_SECONDS)


def _state(error: Exception) -> str:
    return str(getattr(getattr(error, "orig", None), "sqlstate", None) or "")

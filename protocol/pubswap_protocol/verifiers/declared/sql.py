"""`sql`: a query that returns what the reference query does, from a small SQLite in memory.

Queries only read. SQLite asks `_reads` about all that a statement would do, and its limits bound
time and memory. The clock, the time zone and random numbers are out of reach, so that a response
has the same score everywhere; SQLite's own version is part of the verifier's.
"""

import math
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Annotated, Any

from pydantic import Field, StrictBool

from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers.extract import extract_answer, first_of
from pubswap_protocol.verifiers.verifier import VERIFIERS, Verifier

Row = tuple[Any, ...]

_MAX_DATABASE = 1 << 18  # characters
_MAX_QUERY = 1 << 14  # bytes
_MAX_VALUE = 1 << 12  # bytes of a value or a row
_MAX_PAGES = 4096  # of 4 KiB
_MAX_ROWS, _MAX_BYTES = 10_000, 1 << 20  # of a result
_MAX_STEPS = 2_000_000  # instructions of SQLite's machine, a fraction of a second
_STEP = 1000

_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: _MAX_VALUE,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: _MAX_QUERY,
    sqlite3.SQLITE_LIMIT_COLUMN: 200,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 50,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 25_000,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 20,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 200,
    sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 0,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}

# What every build of SQLite has, and computes from its arguments alone.
_MOMENTS = ("date", "time", "datetime", "julianday", "strftime", "unixepoch")
_FUNCTIONS = {
    *("count", "sum", "total", "avg", "min", "max", "group_concat"),
    *("abs", "round", "length", "lower", "upper", "substr", "substring", "trim", "ltrim", "rtrim"),
    *("replace", "instr", "coalesce", "ifnull", "nullif", "iif", "like", "glob", "typeof"),
    *("row_number", "rank", "dense_rank", "percent_rank", "cume_dist", "ntile"),
    *("lag", "lead", "first_value", "last_value", "nth_value"),
    *_MOMENTS,
}
_CLOCK = re.compile("now|localtime|utc", re.IGNORECASE)
_NOW = ("current_timestamp", "current_date", "current_time")  # which a column's default may be
# Functions, by numbers of arguments, whose time grows with the product of their texts' lengths.
_SLOW: dict[str, tuple[int, ...]] = {
    **{"instr": (2,), "replace": (3,), "like": (2, 3), "glob": (2,)},
    **dict.fromkeys(("trim", "ltrim", "rtrim"), (2,)),
}
_MAX_PRODUCT = 1 << 16
_CHANGES = {
    *(sqlite3.SQLITE_CREATE_TABLE, sqlite3.SQLITE_CREATE_INDEX, sqlite3.SQLITE_CREATE_VIEW),
    *(sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE),
    *(sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_REINDEX, sqlite3.SQLITE_READ),
}
# Options of a build that change what a query returns.
_DECISIVE = ("DQS", "ENABLE_ICU", "CASE_SENSITIVE_LIKE", "LIKE_DOESNT_MATCH_BLOBS")

_FENCE = re.compile(r"^[ \t]*+```sql(?:ite)?\b", re.IGNORECASE | re.MULTILINE)


class _NoResult(Exception):
    """A database or query that SQLite, or a limit, refuses."""


@VERIFIERS.register
class SqlResult(Verifier):
    """Correct if the query returns the rows of the problem's query, from a small SQLite database.

    The last ```sql fence counts, else the extracted answer. The order of columns counts, their
    names do not. Numbers may differ by rounding.
    """

    name = "sql"
    by_problem = frozenset({"database", "ordered"})

    database: Annotated[str, Field(max_length=_MAX_DATABASE, strict=True)] = Field(
        default="", description="SQL that makes it: CREATE TABLE and INSERT."
    )
    ordered: StrictBool = Field(default=False, description="Whether the order of the rows counts.")

    def score(self, response: str, problem: Problem) -> float:
        query = _query(response)
        if not query or not self.database:
            return 0.0
        try:
            with _opened(self.database) as rows:
                gold = rows(problem.answer)
                return float(bool(gold) and self._equal(rows(query), gold))
        except _NoResult:
            return 0.0

    def fault(self, problem: Problem) -> str | None:
        if not self.database:
            return "there is no database; put its SQL into metadata.database or the run's verifier"
        try:
            with _opened(self.database) as rows:
                try:
                    gold = rows(problem.answer)
                except _NoResult as refused:
                    return f"the answer must be a query that reads; SQLite says: {refused}"
        except _NoResult as refused:
            return f"the database cannot be made; SQLite says: {refused}"
        if not gold:
            return (
                "the answer's query returns no rows, as many wrong ones do; add rows that it finds"
            )
        if not self.score(self.right_response(problem), problem):
            return "the answer cannot be told from a response's layout"
        return None

    def right_response(self, problem: Problem) -> str:
        return f"The query:\n```sql\n{problem.answer}\n```"

    def versions(self) -> list[str]:
        with closing(sqlite3.connect(":memory:")) as connection:
            options = [option for (option,) in connection.execute("PRAGMA compile_options")]
        return [sqlite3.sqlite_version, *(o for o in options if o.startswith(_DECISIVE))]

    def _equal(self, rows: list[Row], gold: list[Row]) -> bool:
        if len(rows) != len(gold):
            return False
        if not self.ordered:
            rows, gold = sorted(rows, key=_place), sorted(gold, key=_place)
        return all(
            len(one) == len(other) and all(map(_alike, one, other))
            for one, other in zip(rows, gold, strict=True)
        )


def _query(response: str) -> str:
    text = first_of(response, lambda whole: whole) or ""
    if fences := list(_FENCE.finditer(text)):
        return text[fences[-1].end() :].partition("```")[0].strip()
    return extract_answer(response)


@contextmanager
def _opened(database: str) -> Iterator[Callable[[str], list[Row]]]:
    """The rows of queries to a new database; raises _NoResult."""
    memory = sqlite3.connect(":memory:", isolation_level=None)
    with closing(memory) as connection, closing(sqlite3.connect(":memory:")) as plain:
        for limit, most in _LIMITS.items():
            connection.setlimit(limit, most)
        connection.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, 4 * _MAX_DATABASE)
        plain.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE)
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute(f"PRAGMA max_page_count = {_MAX_PAGES}")
        connection.text_factory = lambda text: text.decode(errors="surrogateescape")
        for name in _MOMENTS:
            connection.create_function(name, -1, _guarded(plain, name), deterministic=True)
        for name, counts in _SLOW.items():
            for count in counts:
                connection.create_function(name, count, _guarded(plain, name), deterministic=True)
        for name in _NOW:
            connection.create_function(name, 0, _guarded(plain, name))
        connection.set_authorizer(_changes)
        with _limited(connection):
            connection.executescript(database)
        found = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
        connection.set_authorizer(_reads({name.casefold() for (name,) in found}))
        connection.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, _MAX_QUERY)

        def rows(query: str) -> list[Row]:
            with _limited(connection):
                return _fetched(connection.execute(query))

        yield rows


def _fetched(cursor: sqlite3.Cursor) -> list[Row]:
    if cursor.description is None:
        raise _NoResult("it is not a query")
    rows: list[Row] = []
    size = 0
    for row in cursor:
        size += sum(len(value) if isinstance(value, str | bytes) else 8 for value in row)
        if len(rows) == _MAX_ROWS or size > _MAX_BYTES:
            raise _NoResult(f"it returns more than {_MAX_ROWS:,} rows or {_MAX_BYTES:,} bytes")
        rows.append(row)
    return rows


@contextmanager
def _limited(connection: sqlite3.Connection) -> Iterator[None]:
    """Bound the steps of what runs within, and raise _NoResult for whatever SQLite refuses."""
    steps = 0

    def is_over() -> int:
        nonlocal steps
        steps += _STEP
        return steps > _MAX_STEPS

    connection.set_progress_handler(is_over, _STEP)
    try:
        yield
    # Python's own refusals are ValueErrors: a NUL, a lone surrogate. Several statements are a
    # Warning in 3.11.
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, MemoryError) as error:
        text = f"it takes more than {_MAX_STEPS:,} steps" if steps > _MAX_STEPS else str(error)
        raise _NoResult(text or "out of memory") from None


def _changes(action: int, name: str | None, other: str | None, *_: object) -> int:
    """What may be done to make a database."""
    if action == sqlite3.SQLITE_PRAGMA and (name or "").casefold() == "foreign_keys":
        return sqlite3.SQLITE_IGNORE  # each dump begins with it
    return sqlite3.SQLITE_OK if action in _CHANGES else _calculates(action, other)


def _reads(tables: set[str]) -> Callable[..., int]:
    """What a query may do with these tables and views."""

    def reads(action: int, name: str | None, other: str | None, *_: object) -> int:
        if action == sqlite3.SQLITE_READ:
            # A common table expression is named, too, but without a column.
            known = not other or (name or "").casefold() in tables
            return sqlite3.SQLITE_OK if known else sqlite3.SQLITE_DENY
        return _calculates(action, other)

    return reads


def _calculates(action: int, function: str | None) -> int:
    allowed = action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE)
    if action == sqlite3.SQLITE_FUNCTION:
        allowed = (function or "").casefold() in _FUNCTIONS
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def _guarded(plain: sqlite3.Connection, name: str) -> Callable[..., Any]:
    """SQLite's own function, without the clock and the time zone, and with bounded time."""

    def function(*values: Any) -> Any:
        texts = list(map(_text, values))
        if name in _SLOW:
            if len(texts[0]) * len(texts[1]) > _MAX_PRODUCT:
                raise ValueError("its texts are too long")
        elif not (moments := texts[name == "strftime" :]) or any(map(_CLOCK.search, moments)):
            raise ValueError("the clock is out of reach")
        marks = ", ".join("?" * len(values))
        return plain.execute(f"SELECT {name}({marks})", values).fetchone()[0]

    return function


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, float) or isinstance(other, float):
        numbers = isinstance(one, int | float) and isinstance(other, int | float)
        return numbers and math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
    return type(one) is type(other) and bool(one == other)


def _place(row: Row) -> tuple[Any, ...]:
    """Where a row is sorted: rounding moves it only among rows that are alike."""
    return (*map(_rounded, row), *(v if isinstance(v, int | float) else 0 for v in row))


def _rounded(value: Any) -> tuple[int, Any]:
    if value is None:
        return 0, 0
    if isinstance(value, int | float):
        return 1, 0.0 if abs(value) < 1e-12 else float(f"{value:.9g}")
    return (2, value) if isinstance(value, str) else (3, value)

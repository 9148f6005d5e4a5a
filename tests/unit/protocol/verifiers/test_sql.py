"""`sql`: a query's rows, from a small SQLite that can only be read."""

import sqlite3
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pubswap_protocol.errors import InvalidProblems, first_fault
from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers import VerifierPool, verifier_version
from pubswap_protocol.verifiers.registry import VERIFIERS, score
from pubswap_protocol.verifiers.verifier import Verifier

DATABASE = """PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE complaint(id INTEGER PRIMARY KEY, category TEXT, amount REAL, day TEXT);
INSERT INTO complaint VALUES
    (1, 'fees', 12.5, '2024-01-02'), (2, 'cards', 3.25, '2024-02-03'),
    (3, 'fees', 0.1, NULL), (4, 'fees', 12.5, '2024-01-02');
CREATE VIEW large AS SELECT * FROM complaint WHERE amount > 1;
CREATE TABLE long(text);
INSERT INTO long VALUES('""" + ("a" * 4000 + "');\nCOMMIT;\n")

SUMS = "SELECT category, sum(amount) FROM complaint GROUP BY category"
FOR_EVER = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) "


def verifier(database: object = DATABASE, **parameters: object) -> Verifier:
    return VERIFIERS.read({"name": "sql", "database": database, **parameters})


def problem(answer: str = SUMS, **metadata: object) -> Problem:
    return Problem(id="1", prompt="Sums by category?", answer=answer, metadata=metadata)


def fenced(query: str) -> str:
    return f"So:\n```sql\n{query}\n```\nThat is all."


@pytest.mark.parametrize(
    ("query", "answer", "right"),
    [
        (SUMS, SUMS, 1),
        (SUMS + " ORDER BY 2 DESC; -- sorted", SUMS, 1),
        ("SELECT 'cards' AS x, 3.25 UNION SELECT 'fees', 25.1", SUMS, 1),
        ("SELECT 'fees', 25.100000000001 UNION SELECT 'cards', 3.25", SUMS, 1),
        ("SELECT 'fees', 25.1001 UNION SELECT 'cards', 3.25", SUMS, 0),
        ("SELECT sum(amount), category FROM complaint GROUP BY category", SUMS, 0),
        ("SELECT category FROM complaint GROUP BY category", SUMS, 0),
        ("SELECT category, sum(amount), 1 FROM complaint GROUP BY category", SUMS, 0),
        (SUMS + " UNION ALL " + SUMS, SUMS, 0),
        (SUMS + " LIMIT 1", SUMS, 0),
        ("SELECT amount FROM complaint", "SELECT DISTINCT amount FROM complaint", 0),
        ("SELECT count(*) FROM complaint", "VALUES (4)", 1),
        ("SELECT count(*) FROM complaint", "VALUES (4.0)", 1),
        ("SELECT '4'", "VALUES (4)", 0),
        ("SELECT 4", "VALUES ('4')", 0),
        ("SELECT NULL", "SELECT day FROM complaint WHERE id = 3", 1),
        ("SELECT ''", "SELECT NULL", 0),
        ("SELECT 0", "SELECT NULL", 0),
        ("SELECT x'61'", "SELECT 'a'", 0),
        ("SELECT CAST(x'ff' AS TEXT)", "SELECT CAST(x'ff' AS TEXT)", 1),
        ("SELECT 9007199254740993", "SELECT 9007199254740992", 0),
        ("SELECT 9e999", "SELECT 9e999", 1),
        ("SELECT 0.1 + 0.2 - 0.3", "SELECT 0", 1),
        ("SELECT id FROM large", "SELECT id FROM complaint WHERE amount > 1", 1),
        ("SELECT date(day, '+1 month') FROM complaint WHERE id = 1", "VALUES ('2024-02-02')", 1),
        ("SELECT count(*) FROM complaint WHERE strftime('%Y', day) = '2024'", "VALUES (3)", 1),
        ("SELECT instr('abc', 'C'), replace('aba', 'a', 'x')", "VALUES (0, 'xbx')", 1),
        ("SELECT trim('xax', 'x'), ltrim(' a')", "VALUES ('a', 'a')", 1),
        ("SELECT 'abc' LIKE 'A%', 'abc' GLOB 'A*'", "VALUES (1, 0)", 1),
        ("SELECT 'a%' LIKE 'a\\%' ESCAPE '\\'", "VALUES (1)", 1),
        ("WITH t AS (SELECT * FROM complaint) SELECT count(*) FROM t", "VALUES (4)", 1),
        (FOR_EVER + "SELECT count(*) FROM (SELECT x FROM r LIMIT 9)", "VALUES (9)", 1),
        ("SELECT row_number() OVER (ORDER BY id) FROM complaint", "SELECT id FROM complaint", 1),
        ("SELECT `id` FROM [complaint]", "SELECT id FROM complaint", 1),
    ],
)
def test_the_rows_decide(query: str, answer: str, right: float) -> None:
    """As a multiset: names of columns and the order of rows do not count."""
    assert verifier().fault(problem(answer)) is None
    assert score(verifier(), fenced(query), problem(answer)) == right
    assert score(verifier(), f"<answer>{query}</answer>", problem(answer)) == right


def test_the_order_may_count() -> None:
    """Of rows that are the same otherwise."""
    item = problem("SELECT id FROM complaint ORDER BY id")
    reverse = fenced("SELECT id FROM complaint ORDER BY id DESC")
    assert score(verifier(), reverse, item) == 1
    assert score(verifier(ordered=True), reverse, item) == 0
    assert score(verifier(ordered=True), fenced("SELECT id FROM complaint ORDER BY 1"), item) == 1


@pytest.mark.parametrize(
    ("response", "right"),
    [
        (fenced("SELECT 1") + fenced(SUMS), 1),
        (fenced(SUMS) + fenced("SELECT 1"), 0),
        (f"```SQL {SUMS}```", 1),
        (f"```sqlite\n{SUMS}", 1),
        (f"Answer: {SUMS}", 1),
        (f"Answer: `{SUMS}`", 1),
        (f"<think>{fenced(SUMS)}</think>", 0),
        (f"<think>{fenced(SUMS)}", 0),
        (fenced(""), 0),
        (fenced("SELECT '\ud800'"), 0),
        ("", 0),
    ],
)
def test_exactly_one_query_counts(response: str, right: float) -> None:
    """The last fence's, else the extracted answer."""
    assert score(verifier(), response, problem()) == right


@pytest.mark.parametrize(
    "query",
    [
        *("ATTACH '{file}' AS x", "ATTACH ':memory:' AS x", "VACUUM INTO '{file}'", "VACUUM"),
        *("PRAGMA table_info(complaint)", "SELECT * FROM pragma_table_info('complaint')"),
        *("SELECT count(*) FROM pragma_table_info('complaint')", "SELECT * FROM json_each('[1]')"),
        *("SELECT sql FROM sqlite_master", "SELECT * FROM dbstat", "SELECT load_extension('x')"),
        *("SELECT writefile('{file}', 'x')", "SELECT readfile('/etc/passwd')"),
        *("SELECT fts3_tokenizer('simple')", "SELECT random()", "SELECT randomblob(9)"),
        *("SELECT hex(zeroblob(1000000000))", "SELECT printf('%.*c', 1000000000, 'x')"),
        *("SELECT date('now')", "SELECT date()", "SELECT strftime('%Y')"),
        "SELECT CURRENT_TIMESTAMP",
        *("SELECT date(x'6e6f77')", "SELECT date('n' || 'OW')", "SELECT unixepoch('now')"),
        *("SELECT datetime('2024-01-01', 'localtime')", "SELECT time('12:00', 'utc')"),
        *("SELECT last_insert_rowid()", "SELECT sqlite_version()", "SELECT current_time"),
        *("DELETE FROM complaint", "DROP TABLE complaint", "CREATE TABLE x(y)", "ANALYZE"),
        *("INSERT INTO complaint VALUES (9, 1, 1, 1) RETURNING id", "CREATE TEMP TABLE x(y)"),
        *("UPDATE complaint SET id = 9 RETURNING id", "BEGIN", "COMMIT", "SAVEPOINT a"),
        *("SELECT 1; SELECT 1", "SELECT 1; DROP TABLE complaint", "SELECT ?", "--", ";"),
        *("SELECT 1\0", "SELECT " + "0+(" * 200 + "1" + ")" * 200, "no SQL"),
        *("SELECT " + "1 + " * 200 + "1", "SELECT 1" + " UNION SELECT 1" * 60),
        *("SELECT 1 -- " + "x" * 20_000, "SELECT text || text FROM long"),
        *("SELECT replace(text, 'a', text) FROM long", "SELECT instr(text, text) FROM long"),
        FOR_EVER + "SELECT count(*) FROM r",
        FOR_EVER + "SELECT x FROM r",
        FOR_EVER + "SELECT text FROM r, long LIMIT 9999",
        FOR_EVER + "SELECT max(x) FROM (SELECT x FROM r ORDER BY x || (SELECT text FROM long))",
        FOR_EVER.replace("ALL", "") + "SELECT count(*) FROM r",
        FOR_EVER + "SELECT count(text LIKE 'a%a%a%a%a%a%b' || x) FROM r, long",
        FOR_EVER + "SELECT count(date('2024-01-01', x || ' days')) FROM r",
        "SELECT count(*) FROM " + ", ".join(f"complaint t{n}" for n in range(15)),
    ],
)
def test_a_query_only_reads_and_ends(query: str, tmp_path: Path) -> None:
    """No file, no clock, no chance; limits of steps, rows and bytes."""
    judge, query = verifier(), query.format(file=tmp_path / "written")
    began = time.process_time()
    assert score(judge, fenced(query), problem("SELECT 1")) == 0
    told = judge.fault(problem(query))
    assert told and told.startswith("the answer must be a query that reads; SQLite says: ")
    assert time.process_time() - began < 20
    assert not list(tmp_path.iterdir())
    assert score(judge, fenced(SUMS), problem()) == 1


@pytest.mark.parametrize(
    ("database", "fault"),
    [
        ("", "there is no database"),
        ("no SQL", "the database cannot be made; SQLite says: near"),
        ("ATTACH '/tmp/x' AS x", "the database cannot be made; SQLite says: not authorized"),
        ("PRAGMA journal_mode = WAL", "the database cannot be made"),
        ("CREATE VIRTUAL TABLE t USING fts5(a)", "the database cannot be made"),
        ("CREATE TEMP TABLE t(a)", "the database cannot be made"),
        ("CREATE TABLE t(a); INSERT INTO t VALUES (random())", "the database cannot be made"),
        (
            "CREATE TABLE t(a, b DEFAULT CURRENT_TIMESTAMP); INSERT INTO t(a) VALUES (1)",
            "the database cannot be made",
        ),
        (f"CREATE TABLE t(a); {FOR_EVER} INSERT INTO t SELECT x FROM r", "2,000,000 steps"),
        ("CREATE TABLE t(a);\0", "the database cannot be made"),
        ("CREATE TABLE t(a)", "the answer's query returns no rows"),
    ],
)
def test_a_database_that_cannot_be_made_is_told(database: str, fault: str) -> None:
    """Nothing is right then."""
    told = verifier(database).fault(problem("SELECT a FROM t"))
    assert told and fault in told
    assert score(verifier(database), fenced("SELECT a FROM t"), problem("SELECT a FROM t")) == 0


def test_wrong_parameters_are_named() -> None:
    """In settings and in a problem's metadata."""
    for wrong in ({"database": "x" * 300_000}, {"database": 1}, {"ordered": 1}):
        with pytest.raises(ValidationError) as refused:
            VERIFIERS.read({"name": "sql", **wrong})
        assert first_fault(refused.value).startswith(next(iter(wrong)))
        with pytest.raises(InvalidProblems, match="1: metadata: "):
            verifier().on(problem(**wrong))


def test_the_version_of_sqlite_is_a_part_of_the_verifier_s() -> None:
    """Because it decides results."""
    assert verifier_version("sql").split("+")[1] == sqlite3.sqlite_version


def test_a_problem_s_own_database_outranks_the_run_s() -> None:
    """And is scored in the pool's processes as here."""
    own = problem("SELECT a FROM t", database="CREATE TABLE t(a); INSERT INTO t VALUES (7), (8)")
    items = [(fenced(f"VALUES {rows}"), own) for rows in ("(8), (7)", "(7)", "(7), (9)")]
    with VerifierPool() as pool:
        assert not pool.at_once("sql", [own])
        assert pool.score_many(verifier(), items) == [1, 0, 0]
    assert [score(verifier(), *item) for item in items] == [1, 0, 0]


VALUES = st.none() | st.integers(-9, 9) | st.floats(-9, 9).map(lambda x: round(x, 3))
VALUES |= st.text("ab'é", max_size=3) | st.binary(max_size=2)
ROWS = st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=6)


def literal(value: object) -> str:
    """A value as SQLite reads it."""
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    return "NULL" if value is None else repr(value)


@given(rows=ROWS, other=ROWS, random=st.randoms(use_true_random=False), noise=st.booleans())
def test_rows_are_a_multiset(rows: list, other: list, random: object, noise: bool) -> None:  # type: ignore[type-arg]
    """In any order, with rounding, and with no row more or fewer; against hand-written ones."""

    def values(given: list) -> str:  # type: ignore[type-arg]
        return "VALUES " + ", ".join(f"({', '.join(map(literal, row))})" for row in given)

    def same(value: object) -> object:
        return (float, float(value)) if isinstance(value, int | float) else (type(value), value)

    item, shuffled = problem(values(rows)), list(rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    if noise:
        shuffled = [
            tuple(v * (1 + 1e-13) if isinstance(v, float) else v for v in row) for row in shuffled
        ]
    judge = verifier()
    assert judge.fault(item) is None
    assert judge.score(fenced(values(shuffled)), item) == 1
    assert judge.score(fenced(values([*shuffled, shuffled[0]])), item) == 0
    equal = sorted(map(repr, [tuple(map(same, row)) for row in rows])) == sorted(
        map(repr, [tuple(map(same, row)) for row in other])
    )
    if "-0.0" not in f"{rows}{other}":
        assert judge.score(fenced(values(other)), item) == equal
    assert judge.score("", item) == 0

"""Problem files."""

from pathlib import Path
from zipfile import ZipFile

import pytest

from pubswap_protocol.errors import InvalidProblems
from pubswap_protocol.problems import (
    MAX_TEXT,
    Problem,
    parse_problems,
    read_jsonl,
    read_problems,
    write_problems,
)


def test_problems_are_read_as_they_were_written(tmp_path: Path) -> None:
    """Defaults are omitted and restored; metadata and Unicode survive."""
    problems = [
        Problem(id="1", prompt="2 + 2 =", answer="4"),
        Problem(id="2", prompt="π?", answer="3", topic="π", verifier="exact", metadata={"a": [1]}),
    ]
    write_problems(tmp_path / "p.jsonl", problems)
    assert read_problems(tmp_path / "p.jsonl") == problems
    assert "metadata" not in (tmp_path / "p.jsonl").read_text().splitlines()[0]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "has no problems"),
        (b"{", "line 1"),
        (b'{"id": "1", "prompt": "x", "answer": "y"}\n\n{}', "line 2: the line is empty"),
        (b'{"id": "1", "answer": "y"}', "line 1: prompt: it is missing"),
        (b'{"id": "1", "prompt": "", "answer": "y"}', "line 1: prompt: it is empty"),
        (b'{"id": "1", "prompt": "x", "answer": [4]}', "line 1: answer: it must be text"),
        (b'{"id": "1", "prompt": "x", "answer": NaN}', "line 1: answer: it must be text"),
        (b'{"id": 1, "prompt": 2, "answer": "y"}', "line 1: prompt: it must be text, in quotes"),
        (b'{"id": 1, "prompt": "x", "answer": 4, "z": 1}', "line 1: z: there is no such field"),
        (
            b'{"id": "1", "prompt": "x", "answer": "y", "z": 1}',
            "line 1: z: there is no such field. Move further fields into `metadata`",
        ),
        (b'{"id": "1", "prompt": "x", "answer": "y", "topic": "a\\u0000"}', "line 1: topic"),
        (b'{"id": "1", "prompt": "x", "answer": "y"}\n' * 2, "line 2: id '1' occurs twice"),
        (b"\xff\xff", "cannot be read"),
    ],
)
def test_an_unusable_file_is_refused_by_line(tmp_path: Path, data: bytes, message: str) -> None:
    """The message names file, line and field."""
    (tmp_path / "p.jsonl").write_bytes(data)
    with pytest.raises(InvalidProblems, match=message):
        read_problems(tmp_path / "p.jsonl")


@pytest.mark.parametrize("value", ["[]", '{"a":1}', "1"])
def test_a_line_of_too_many_values_is_refused(value: str) -> None:
    """Each value may take a thousand bytes, unlike a string of the same length."""
    before = '{"id": "1", "prompt": "p", "answer": "4", "metadata": {"x": '
    listed = "[" + ",".join([value] * ((1 << 20) + 2)) + "]"
    with pytest.raises(InvalidProblems, match=r"set, line 1: .* more than 1,048,576 values"):
        parse_problems(before + listed + "}}", "set")
    assert len(parse_problems(before + '"' + "a" * len(listed) + '"}}')) == 1


def test_a_line_longer_than_any_problem_is_refused() -> None:
    """The longest prompt and answer fit, even if JSON escapes every character."""
    longest = "\\u00e9" * MAX_TEXT
    line = '{"id": "1", "prompt": "' + longest + '", "answer": "' + longest + '"}'
    assert len(parse_problems(line)[0].prompt) == MAX_TEXT
    with pytest.raises(InvalidProblems, match="line 2: the line has 16,777,217 characters"):
        parse_problems(line + "\n" + " " * (1 << 24) + "x")


def test_a_line_ends_at_newlines_alone() -> None:
    """Unicode's other line separators may occur within JSON strings."""
    text = '{"id": "1", "prompt": "one\u2028two\u0085", "answer": "3"}\r\n'
    (problem,) = parse_problems(text)
    assert problem.prompt == "one\u2028two\u0085"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """The message has the path once, so that a typo is visible."""
    with pytest.raises(InvalidProblems) as refused:
        read_problems(tmp_path / "nowhere.jsonl")
    assert refused.value.detail.startswith(
        f"{tmp_path / 'nowhere.jsonl'} cannot be read: No such file or directory. "
    )
    assert refused.value.detail.count("nowhere.jsonl") == 1


def test_empty_lines_at_the_end_are_not_problems() -> None:
    """Editors leave them. The numbers of the lines before stay."""
    line = '{"id": "1", "prompt": "x", "answer": "y"}'
    assert len(parse_problems(line + "\r\n\n  \n")) == 1


@pytest.mark.parametrize(
    ("number", "text"),
    [
        ("12", "12"),
        ("0.5", "0.5"),
        ("1.50", "1.50"),
        ("0.1234567890123456789", "0.1234567890123456789"),
        ("12345678901234567890123", "12345678901234567890123"),
        ("3e-05", "0.00003"),
        ("-2.5E-7", "-0.00000025"),
        ("1e16", "10000000000000000"),
        ("3e-36", "3.0e-36"),
        ("6.63e-34", "6.63e-34"),
        ("5e+22", "5.0e22"),
        ("1e99999999", "1e99999999"),
        ("true", "true"),
        ("false", "false"),
    ],
)
def test_ids_answers_and_topics_may_be_numbers(number: str, text: str) -> None:
    """They become the text that responses contain, not Python's 3e-05, and lose no digit."""
    line = f'{{"id": {number}, "prompt": "a", "answer": {number}, "topic": {number}}}'
    assert parse_problems(line) == [Problem(id=text, prompt="a", answer=text, topic=text)]


BEGINNINGS = {
    "a.csv": b"id,prompt,answer\n",
    "a.TSV": b"id\tprompt\tanswer\n",
    "a.parquet": b"PAR1...",
    "a.json": b'\xef\xbb\xbf\n [{"id": "1"}]',
    "a.txt": "id;prompt".encode("utf-16"),
}
OTHERS = {
    "b.xls": (b"\xd0\xcf\x11\xe0...", "an old Excel workbook"),
    "b.jsonl.gz": (b"\x1f\x8b\x08...", "compressed by gzip, .*Unpack it"),
    "b.pdf": (b"%PDF-1.7", "a PDF"),
    "b.jsonl": (b"<!DOCTYPE html>", "a web page"),
    "b.zip": (b"PK\x03\x04...", "a damaged ZIP file"),
}


@pytest.mark.parametrize("name", BEGINNINGS)
def test_a_table_is_refused_with_the_command_that_converts_it(tmp_path: Path, name: str) -> None:
    """The format is known by the first bytes; of text, by the suffix."""
    (tmp_path / name).write_bytes(BEGINNINGS[name])
    with pytest.raises(InvalidProblems, match=rf"not JSONL.*pubswap data convert \S*{name} "):
        read_problems(tmp_path / name)


@pytest.mark.parametrize("name", OTHERS)
def test_a_file_that_is_no_table_is_refused_with_what_it_is(tmp_path: Path, name: str) -> None:
    """And with what to do first."""
    data, said = OTHERS[name]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InvalidProblems, match=f"is {said}"):
        read_problems(tmp_path / name)


@pytest.mark.parametrize(
    ("inside", "said"),
    [
        ("xl/workbook.xml", "an Excel workbook, not JSONL.*pubswap data convert"),
        ("xl/workbook.bin", "a binary Excel workbook"),
        ("content.xml", "an OpenDocument file"),
        ("word/document.xml", "a Word document"),
        ("data/private.jsonl", "a ZIP archive"),
    ],
)
def test_a_zip_file_is_known_by_what_is_in_it(tmp_path: Path, inside: str, said: str) -> None:
    """A workbook is one, whatever its name."""
    with ZipFile(tmp_path / "data.jsonl", "w") as archive:
        archive.writestr(inside, "")
    with pytest.raises(InvalidProblems, match=f"is {said}"):
        read_problems(tmp_path / "data.jsonl")


def test_the_name_of_a_verifier_moves_no_cursor() -> None:
    """If it does not exist, a process without a log format prints the name on the terminal."""
    problem = Problem(id="1", prompt="?", answer="4", verifier="none\x1b[2J\x9b\nerror")
    assert problem.verifier == "none [2J  error"


def test_a_file_is_read_line_by_line(tmp_path: Path) -> None:
    """What a later line has does not matter before it is read; empty lines at the end do not."""
    path = tmp_path / "large.jsonl"
    path.write_bytes(b"\xef\xbb\xbffirst\n\n third\n\n\xff\n")
    lines = read_jsonl(path)
    assert [next(lines) for _ in range(3)] == [(1, "first\n"), (2, "\n"), (3, " third\n")]
    with pytest.raises(InvalidProblems, match="line 5 is not UTF-8"):
        next(lines)
    path.write_bytes(b"first\n\n \n")
    assert list(read_jsonl(path)) == [(1, "first\n")]

"""`pubswap data convert`: tables of other programs, most of them with faults."""

import csv
import datetime
import errno
import json
import os
import tracemalloc
import warnings
from decimal import Decimal
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pyarrow
import pytest
from openpyxl import Workbook, load_workbook
from pyarrow import parquet
from typer.testing import CliRunner

from pubswap_client.data.convert.numbers import ColumnSurvey, decimal_marks, number_of, pointed
from pubswap_client.data.convert.workbook import workbook
from pubswap_protocol.cli import build_app
from pubswap_protocol.errors import InvalidProblems, InvalidSettings, NotSaved, PubSwapError
from pubswap_protocol.problems import Problem, read_problems

HEADER = ("Complaint ID", "Text", "Category", "Amount")
ROWS = [
    ("0001", "Gebühr zweimal; bitte zurück", "fees", "12,50"),
    ("0002", 'Er sagte "nein"\nund ging · 5 €', "service", "1.234,00"),
    ("0003", "", "fees", "3,00"),
    ("0004", "Karte gesperrt", "", "7"),
    ("0005", "Karte gesperrt", "cards", "7"),
    ("0005", "Konto weg", "cards", "8,25"),
    ("0006", "Karte gesperrt", "fees", "7"),
]
ROLES = ["--id", "Complaint ID", "--prompt", "Text", "--answer", "Category"]


def write_table(path: Path, rows: Any, encoding: str = "utf-8", delimiter: str = ",") -> Path:
    with path.open("w", encoding=encoding, newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)
    return path


def write_sheet(path: Path, rows: Any, title: str = "Data") -> Path:
    book = Workbook()
    book.active.title = title
    for row in rows:
        book.active.append(row)
    book.save(path)
    return path


def convert(path: Path, *options: str, out: str = "private.jsonl") -> tuple[list[Problem], str]:
    """Run the command; returns the problems and what it printed, or raises its error."""
    target = path.with_name(out)
    arguments = ["data", "convert", str(path), "--out", str(target), *options]
    done = CliRunner(env={"COLUMNS": "160"}).invoke(build_app(), arguments)
    if isinstance(done.exception, PubSwapError):
        raise done.exception
    assert done.exit_code == 0, (done.output, done.exception)
    return read_problems(target), done.stdout


def test_an_excel_export_of_central_europe_is_read(tmp_path: Path) -> None:
    """Semicolons, decimal commas and cp1252 are found and shown; what is left out has its line."""
    path = write_table(tmp_path / "export.csv", [HEADER, *ROWS], "cp1252", ";")
    problems, said = convert(path, *ROLES, "--metadata", "Amount")
    assert problems[:2] == [
        Problem(id="0001", prompt=ROWS[0][1], answer="fees", metadata={"Amount": 12.5}),
        Problem(id="0002", prompt=ROWS[1][1], answer="service", metadata={"Amount": 1234}),
    ]
    assert [problem.id for problem in problems[2:]] == ["0005", "0006"]
    assert "cp1252, columns parted by semicolons" in said
    assert "metadata.Amount; decimal commas" in said
    assert "│ Gebühr zweimal; bitte zurück" in said and "│ und ging · 5 €" in said
    listed = (tmp_path / "private-left-out.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in listed] == [
        {"line": 5, "reason": "prompt: nothing in Text"},
        {"line": 6, "reason": "answer: nothing in Category"},
        {"line": 8, "reason": "id: it occurs before"},
    ]
    assert "left out, 1: prompt: nothing in Text (line 5)" in said


@pytest.mark.parametrize(
    ("encoding", "delimiter", "shown"),
    [
        ("utf-8", ",", "UTF-8, columns parted by commas"),
        ("utf-8-sig", ";", "UTF-8, columns parted by semicolons"),
        ("utf-16", "\t", "UTF-16, columns parted by tabs"),
        ("utf-8", "|", "UTF-8, columns parted by bars"),
    ],
)
def test_encoding_and_separator_are_found(
    tmp_path: Path, encoding: str, delimiter: str, shown: str
) -> None:
    """The separator is the one that parts the columns asked for, whatever else the text has."""
    names = ("Text", "Category", "a; b, c | d\te, f; g")
    rows = [names, ("a;b;c | d, ž, e", "fees", ""), ("f\tg", "cards", "")]
    problems, said = convert(
        write_table(tmp_path / "a.csv", rows, encoding, delimiter),
        *("--prompt", "Text", "--answer", "Category"),
    )
    assert [(p.id, p.prompt, p.answer) for p in problems] == [
        ("line-2", "a;b;c | d, ž, e", "fees"),
        ("line-3", "f\tg", "cards"),
    ]
    assert shown in said


def test_an_encoding_may_be_named(tmp_path: Path) -> None:
    """cp1250 cannot be told from cp1252; a name that no encoding has is refused."""
    path = write_table(tmp_path / "a.csv", [("prompt", "answer"), ("Źródło ť", "x")], "cp1250")
    assert convert(path, "--encoding", "cp1250")[0][0].prompt == "Źródło ť"
    with pytest.raises(InvalidSettings, match="no encoding 'cp125x'"):
        convert(path, "--encoding", "cp125x", out="b.jsonl")
    with pytest.raises(InvalidProblems, match=r"soon after line \d is not cp1252"):
        convert(path, out="b.jsonl")


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("žluť,x\n".encode() + b"\xff,y\n", "line 3 is not UTF-8, and line 2 is"),
        (b"\xff,y\n" + "žluť,x\n".encode(), "line 2 is not UTF-8, and line 3 is"),
    ],
)
def test_a_file_of_two_encodings_is_read_as_neither(
    rows: bytes, words: str, tmp_path: Path
) -> None:
    """Read as cp1252, all letters of the UTF-8 would be wrong, whichever comes first."""
    (tmp_path / "a.csv").write_bytes(b"prompt,answer\n" + rows)
    with pytest.raises(InvalidProblems, match=words):
        convert(tmp_path / "a.csv", out="b.jsonl")


def test_a_row_with_too_many_cells_is_left_out_with_its_line(tmp_path: Path) -> None:
    """Empty lines are no rows, cells at the end may be missing, and a column needs a name."""
    path = tmp_path / "a.csv"
    path.write_text('\nText,,Category\nx,1,fees\n\n"two\nlines",,cards\na,b\na,b,c,d\na,,c,,\n,,\n')
    problems, said = convert(path, "--prompt", "Text", "--answer", "Category")
    assert [(p.id, p.prompt) for p in problems] == [
        ("line-3", "x"),
        ("line-5", "two\nlines"),
        ("line-9", "a"),
    ]
    assert "left out, 1: answer: nothing in Category (line 7)" in said
    assert "left out, 1: the row has 4 cells, and the columns are 3 (line 8)" in said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'a,b\nx,fees\n"y,cards\nz,fees\n',
            "begins in line 3 cannot be read: unexpected end",
        ),
        ('a,b\n"x" y,fees\n', "begins in line 2 cannot be read: .* expected after"),
        ("a,b\n" + '"' + "y\n" * (1 << 20), "in line 2 cannot be read: field larger than"),
        ("a,b,a\nx,y,z\n", "the column 'a' occurs 2 times"),
        ("c,b\nx,y\n", "has no column 'a'. Its columns are 'c', 'b'"),
        ("a;c\nx;y\n", "has no column 'b'. Its columns are 'a', 'c'"),
        ("", "has no rows"),
        ("a,b\n,\n , \n", "has no row that can be a problem"),
        ("a,b\n,fees\nx,\n", "has no row that can be a problem"),
        ("a,b\n", "has no row that can be a problem"),
    ],
)
def test_a_table_that_cannot_be_read_is_one_error(tmp_path: Path, text: str, message: str) -> None:
    """It has the line, and nothing is written."""
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(PubSwapError, match=message):
        convert(tmp_path / "a.csv", "--prompt", "a", "--answer", "b")
    assert [each.name for each in tmp_path.iterdir()] == ["a.csv"]


def test_a_prompt_may_be_a_text_with_columns(tmp_path: Path) -> None:
    r"""\n is a line's end; doubled braces, LaTeX's and JSON's stay; a cell's own are text."""
    rows = [("Subject", "Text", "answer"), ("A {Text}", "x", "1"), ("", "y", "2"), ("", "", "3")]
    path = write_table(tmp_path / "a.csv", rows)
    form = r'{Subject}: {Text}\nEnd with \boxed{} or {{x}} or {"a": {"b": 1}}'
    problems, said = convert(path, "--prompt", form)
    end = '\nEnd with \\boxed{} or {x} or {"a": {"b": 1}}'
    assert [problem.prompt for problem in problems] == ["A {Text}: x" + end, ": y" + end]
    assert "left out, 1: prompt: nothing in Subject and Text (line 4)" in said
    with pytest.raises(InvalidSettings, match="no column 'Txt'"):
        convert(path, "--prompt", "{Subject}: {Txt}", out="b.jsonl")


def test_several_answers_make_an_object(tmp_path: Path) -> None:
    """For the verifier json, which has numbers; a single answer is text with a decimal point."""
    path = write_table(tmp_path / "a.csv", [HEADER, *ROWS[:1]], delimiter=";")
    roles = ["--prompt", "Text", "--answer"]
    problems, said = convert(path, *roles, "kind=Category", "--answer", "Amount")
    assert json.loads(problems[0].answer) == {"kind": "fees", "Amount": 12.5}
    assert problems[0].metadata == {} and "left out" in said  # the column of ids
    problems, _ = convert(path, *roles, "Amount", out="b.jsonl")
    assert problems[0].answer == "12.50"


def test_named_columns_become_metadata(tmp_path: Path) -> None:
    """Under their own names or others, with numbers as numbers but not codes; none else does."""
    rows = [("prompt", "answer", "tol", "code", "note"), ("?", "fees", "0,5", "007", "secret")]
    path = write_table(tmp_path / "a.csv", rows, delimiter=";")
    problems, _ = convert(path, "--metadata", "tolerance=tol", "--metadata", "code")
    assert problems[0].metadata == {"tolerance": 0.5, "code": "007"}


def test_excel_s_types_are_kept(tmp_path: Path) -> None:
    """Dates become text, and numbers lose no digit and gain none."""
    day = datetime.datetime(2024, 5, 31)
    names = ["opened", "at", "share", "ok"]
    path = write_sheet(
        tmp_path / "a.xlsx",
        [
            ["prompt", "answer", *names],
            ["a", 12.5, day, datetime.datetime(2024, 5, 31, 9, 30), 0.1 + 0.2, True],
            ["b", 3.0, day.date(), datetime.time(9, 30), "1,5", None],
        ],
    )
    problems, said = convert(path, *(f"--metadata={name}" for name in names))
    assert [problem.answer for problem in problems] == ["12.5", "3"]
    assert problems[0].metadata == {
        **{"opened": "2024-05-31", "at": "2024-05-31 09:30:00", "share": 0.3, "ok": True},
    }
    assert problems[1].metadata["share"] == 1.5 and problems[1].metadata["at"] == "09:30:00"
    assert "Read as Excel, sheet 'Data'." in said


def test_merged_cells_formulas_and_errors_are_empty(tmp_path: Path) -> None:
    """Below a merged cell's first, where no program has computed a formula, or in an error."""
    book = Workbook()
    sheet = book.active
    for row in [["prompt", "answer"], ["a", "fees"], ["b"], ["c", "=A1"], ["d", "#N/A"]]:
        sheet.append(row)
    sheet.merge_cells("B2:B3")
    sheet["B5"].data_type = "e"
    book.save(tmp_path / "a.xlsx")
    problems, said = convert(tmp_path / "a.xlsx")
    assert [(problem.id, problem.answer) for problem in problems] == [("row-2", "fees")]
    assert "left out, 3: answer: nothing in answer (row 3, 4, 5)" in said


def test_the_first_sheet_is_read_or_the_one_that_is_named(tmp_path: Path) -> None:
    """The message about a missing column has the names of all sheets."""
    book = Workbook()
    book.active.append(["Read me"])
    sheet = book.create_sheet("June")
    sheet.append(["prompt", "answer"])
    sheet.append(["June", "4"])
    book.save(tmp_path / "a.xlsx")
    with pytest.raises(InvalidSettings, match=r"sheet 'Sheet' of 'Sheet', 'June', has no column"):
        convert(tmp_path / "a.xlsx")
    with pytest.raises(InvalidSettings, match="no sheet 'Juni'; it has 'Sheet', 'June'"):
        convert(tmp_path / "a.xlsx", "--sheet", "Juni")
    assert convert(tmp_path / "a.xlsx", "--sheet", "June")[0][0].prompt == "June"
    data = (tmp_path / "a.xlsx").read_bytes()
    (tmp_path / "a.xlsx").write_bytes(data[:-200] + bytes(200))
    with pytest.raises(InvalidProblems, match="is a damaged ZIP file or Excel workbook"):
        convert(tmp_path / "a.xlsx", out="b.jsonl")


def test_one_answer_with_a_key_is_an_object_too(tmp_path: Path) -> None:
    """As several are."""
    path = write_table(tmp_path / "a.csv", [HEADER, *ROWS])
    problems, _ = convert(path, "--prompt", "Text", "--answer", "category=Category")
    assert json.loads(problems[0].answer) == {"category": "fees"}


def test_a_damaged_sheet_is_one_error(tmp_path: Path) -> None:
    """openpyxl has many kinds of them."""
    with ZipFile(tmp_path / "a.xlsx", "w") as archive:
        archive.writestr("xl/workbook.xml", "<")
    with pytest.raises(InvalidProblems, match="cannot be read as an Excel workbook"):
        workbook(tmp_path / "a.xlsx", None)


def test_a_workbook_s_oddities_warn_nobody(tmp_path: Path) -> None:
    """openpyxl warns of a date outside Excel's calendar, which is an error in Excel too."""
    path = write_sheet(tmp_path / "a.xlsx", [["prompt", "answer"], ["a", 4], ["b", 10**9]])
    book = load_workbook(path)
    book.active.cell(3, 2).number_format = "yyyy-mm-dd"
    book.save(path)
    with warnings.catch_warnings(record=True) as caught:
        problems, said = convert(path)
    assert not caught
    assert [problem.prompt for problem in problems] == ["a"] and "(row 3)" in said


def test_parquet_keeps_types_and_nested_values(tmp_path: Path) -> None:
    """Text that looks like a number was meant as text; decimals keep their zeros as answers."""
    table = pyarrow.table(
        {
            "q": ["a", "b", None],
            "gold": pyarrow.array([Decimal("12.50"), Decimal("3.00"), None]),
            "code": ["7", "8", "9"],
            "day": [datetime.date(2024, 5, 31)] * 3,
            "share": [0.5, float("nan"), 1.0],
            "tags": [["x", "1"], [], None],
            "raw": [b"x", None, None],
        }
    )
    parquet.write_table(table, tmp_path / "a.parquet")
    roles = ["--prompt", "q", "--answer", "gold"]
    further = [option for name in table.column_names[2:] for option in ("--metadata", name)]
    problems, said = convert(tmp_path / "a.parquet", *roles, *further)
    assert [problem.answer for problem in problems] == ["12.50", "3.00"]
    assert [problem.metadata for problem in problems] == [
        {"code": "7", "day": "2024-05-31", "share": 0.5, "tags": ["x", "1"]},
        {"code": "8", "day": "2024-05-31", "tags": []},
    ]
    assert "left out, 1: prompt: nothing in q (row 3)" in said
    (tmp_path / "a.parquet").write_bytes(b"PAR1...")
    with pytest.raises(InvalidProblems, match="cannot be read as Parquet"):
        convert(tmp_path / "a.parquet", *roles, out="c.jsonl")


@pytest.mark.parametrize("lines", [False, True])
def test_json_with_other_fields_is_read(tmp_path: Path, lines: bool) -> None:
    """An array or JSONL, whose objects need not have the same fields."""
    rows = [{"q": "a", "gold": 1.5, "n": "1"}, {"q": "b", "gold": {"x": 1}}, 3, {"n": "c"}]
    text = "".join(map("{}\n".format, map(json.dumps, rows))) if lines else json.dumps(rows)
    (tmp_path / "a.json").write_text(text + ("{\n\n{}\n" if lines else ""))
    roles = ["--prompt", "q", "--answer", "gold"]
    problems, said = convert(tmp_path / "a.json", *roles, "--metadata", "n")
    assert [problem.answer for problem in problems] == ["1.5", '{"x": 1}']
    assert problems[0].metadata == {"n": "1"}
    unit = "line" if lines else "row"
    assert f"not a JSON object ({unit} 3)" in said and f"prompt: nothing in q ({unit} 4" in said
    assert not lines or ("not JSON (line 5)" in said and "the line is empty (line 6)" in said)
    (tmp_path / "a.json").write_text("[" * 10**5)
    with pytest.raises(InvalidProblems, match="cannot be read as a JSON array"):
        convert(tmp_path / "a.json", *roles, out="b.jsonl")


@pytest.mark.parametrize("name", ["squad.parquet", "squad.jsonl"])
def test_parts_of_nested_values_are_named_by_points(tmp_path: Path, name: str) -> None:
    """Keys and places; a row that lacks the part lacks the answer, and a whole name goes first."""
    rows = [
        {"q": "a", "gold": {"text": ["x", "y"], "at": [3, 0]}, "gold.style": "rule"},
        {"q": "b", "gold": {"text": ["z"], "at": [1]}, "gold.style": "rule"},
        {"q": "c", "gold": {"text": [], "at": []}, "gold.style": "rule"},
    ]
    if name.endswith("parquet"):
        parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / name)
    else:
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["--prompt", "{q} at {gold.at.0}", "--answer", "gold.text.0"]
    problems, said = convert(tmp_path / name, *options, "--metadata", "style=gold.style")
    found = [(problem.prompt, problem.answer, problem.metadata) for problem in problems]
    assert found == [("a at 3", "x", {"style": "rule"}), ("b at 1", "z", {"style": "rule"})]
    assert "answer: nothing in gold.text.0" in said
    with pytest.raises(InvalidSettings, match=r"no column 'other\.text'"):
        convert(tmp_path / name, "--prompt", "q", "--answer", "other.text", out="b.jsonl")
    with pytest.raises(InvalidProblems, match="no row"):  # a place that no list has
        place = "9" * 5000
        convert(tmp_path / name, "--prompt", "q", "--answer", f"gold.text.{place}", out="b.jsonl")


def test_problems_convert_to_themselves(tmp_path: Path) -> None:
    """Fields with a problem's own names need no option."""
    problems = [
        Problem(id="1", prompt="π", answer="12,5", topic="t", verifier="exact"),
        Problem(id="2", prompt="x", answer="2", metadata={"a": [1, "007"], "b": None}),
        Problem(id="3", prompt=[{"role": "user", "content": "1, 2"}], answer="3"),
    ]
    path = tmp_path / "own.jsonl"
    path.write_text("".join(p.model_dump_json() + "\n" for p in problems))
    assert convert(path)[0] == problems


def test_without_out_nothing_is_written(tmp_path: Path) -> None:
    """An existing file is never replaced. The prompts shown are said to be without a template."""
    path = write_table(tmp_path / "a.csv", [("prompt", "answer"), ("2 + 2 =", "4")])
    done = CliRunner().invoke(build_app(), ["data", "convert", str(path)])
    assert done.exit_code == 0 and "Nothing was written" in done.stdout
    assert "before the model's chat template; `pubswap client doctor` shows" in done.stdout
    assert [each.name for each in tmp_path.iterdir()] == ["a.csv"]
    with pytest.raises(InvalidSettings, match=r"a\.csv already exists"):
        convert(path, out="a.csv")


def test_a_full_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says that there is none and what to do."""

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = write_table(tmp_path / "a.csv", [("prompt", "answer"), ("2 + 2 =", "4")])
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(NotSaved, match=r"private\.jsonl could not be written: No space left"):
        convert(path)
    assert [each.name for each in tmp_path.iterdir()] == ["a.csv"]


def test_a_large_file_is_read_in_pieces(tmp_path: Path) -> None:
    """Memory does not hold the table, only what tells repetitions."""
    path = tmp_path / "a.csv"
    text = "word " * 400
    with path.open("w") as file:
        file.write("prompt,answer\n")
        file.writelines(f"{n} {text},{n}\n" for n in range(5000))
    problems, _ = convert(path)
    assert len(problems) == 5000
    del problems
    tracemalloc.start()
    out = path.with_name("b.jsonl")
    CliRunner().invoke(build_app(), ["data", "convert", str(path), "--out", str(out)])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert out.stat().st_size > 10e6 > peak


def column(*cells: str) -> ColumnSurvey:
    found = ColumnSurvey()
    for cell in cells:
        found.add(cell)
    return found


@pytest.mark.parametrize(
    ("cells", "mark"),
    [
        (["12,50", "7"], ","),
        (["1.234,5"], ","),
        (["1.234", "0,5"], ","),
        (["12.50", "1,234"], "."),
        (["1.250"], "."),
        (["-0.5", "3"], "."),
        (["1,234"], None),
        (["12,50", "12.50"], None),
        (["007", "12"], None),
        (["1.2.2024"], None),
        (["1,23,456"], None),
        (["12 EUR"], None),
        (["1e5"], None),
        (["+5"], None),
        ([""], None),
    ],
)
def test_the_decimal_mark_of_a_column(cells: list[str], mark: str | None) -> None:
    """A column is numbers only if all of its cells are, with one mark, and none has a code's 0."""
    marks, _ = decimal_marks({"a": column(*cells)})
    assert marks.get("a") == mark


def test_other_columns_decide_what_1_234_is() -> None:
    """Without them a comma is unclear, and said so."""
    assert decimal_marks({"a": column("1,234"), "b": column("0,5")})[0]["a"] == ","
    assert decimal_marks({"a": column("1,234"), "b": column("0.5")})[0]["a"] == "."
    assert decimal_marks({"a": column("1.234"), "b": column("0,5")})[0]["a"] == ","
    assert decimal_marks({"a": column("1,234")}) == ({}, ["a"])
    mixed = {"a": column("1,234"), "b": column("0,5"), "c": column("0.5")}
    assert decimal_marks(mixed)[1] == ["a"]


def test_a_number_loses_no_digit() -> None:
    """What a float cannot hold stays text."""
    assert number_of(pointed("1.234,50", ",")) == 1234.5
    assert number_of(pointed("1,234", ".")) == 1234
    assert number_of("12345678901234567890") == 12345678901234567890
    assert number_of("0.12345678901234567890") is None

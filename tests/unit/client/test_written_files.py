"""Files as editors write them, and errors about unreadable ones."""

import codecs
from pathlib import Path

import pytest
from pydantic import ValidationError

from pubswap_client.operator.tables import age_text
from pubswap_client.toml_files import read_toml
from pubswap_protocol.cli import system_fault
from pubswap_protocol.errors import InvalidSettings, first_fault
from pubswap_protocol.messages import CreateInvite
from pubswap_protocol.problems import parse_problems, read_problems


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    """Problems and settings are read as if it were missing, even from text."""
    line = b'{"id": "1", "prompt": "1 + 1 =", "answer": "2"}\n'
    (tmp_path / "private.jsonl").write_bytes(codecs.BOM_UTF8 + line)
    assert [problem.id for problem in read_problems(tmp_path / "private.jsonl")] == ["1"]
    assert len(parse_problems((codecs.BOM_UTF8 + line).decode())) == 1
    (tmp_path / "run.toml").write_bytes(codecs.BOM_UTF8 + b'name = "a"\n')
    assert read_toml(tmp_path / "run.toml") == {"name": "a"}


def test_a_file_in_another_encoding_is_named(tmp_path: Path) -> None:
    """Latin-1 is refused with the file's name and the expected encoding."""
    path = tmp_path / "run.toml"
    path.write_bytes('name = "Zürich"'.encode("latin-1"))
    with pytest.raises(InvalidSettings, match=r"run\.toml is not UTF-8"):
        read_toml(path)


def test_an_invalid_name_is_refused_with_the_valid_form() -> None:
    """In words, together with the given name."""
    with pytest.raises(ValidationError) as caught:
        CreateInvite(name="Hospital A")
    said = first_fault(caught.value)
    assert said.startswith(
        "name: 'Hospital A' is not a valid name: a name is 1 to 63 lowercase letters"
    )


def test_an_os_error_says_where_why_and_what_to_do() -> None:
    """For a read-only disk or a folder; other errors are quoted."""
    said = system_fault(OSError(30, "Read-only file system", "/a/b"))
    assert said == ("/a/b: Read-only file system. Choose a folder on a writable disk.")
    said = system_fault(IsADirectoryError(21, "Is a directory", "/a"))
    assert said == "/a: Is a directory. Name a file, not a folder."
    said = system_fault(NotADirectoryError(20, "Not a directory", "/a/b"))
    assert said == "/a/b: Not a directory. Name a folder, not a file."
    assert system_fault(OSError("no number")) == "no number."


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "never"),
        (2.96, "3 s ago"),
        (150, "2.5 min ago"),
        (3600, "[red]1 h ago[/red]"),
        (172_800, "[red]2 d ago[/red]"),
    ],
)
def test_an_age_has_a_fitting_unit(seconds: float | None, text: str) -> None:
    """It is red once a member has been silent for an hour."""
    assert age_text(seconds) == text

"""Numbers in tables of text, whose decimal mark is a point or a comma."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal

from pubswap_client.data.convert.table import Cell

Mark = Literal[".", ","]

_OTHER: dict[Mark, Mark] = {".": ",", ",": "."}
# With zeros in front, as 007, it is a code and not a number.
_WHOLE = re.compile(r"-?(?:0|[1-9]\d*)", re.ASCII)
_NUMBER = {
    mark: re.compile(
        rf"-?(?:0|[1-9]\d*|[1-9]\d{{0,2}}(?:\{other}\d{{3}})+)(?:\{mark}\d+)?", re.ASCII
    )
    for mark, other in _OTHER.items()
}


def pointed(text: str, mark: Mark) -> str:
    """A number with a decimal point, and nothing at thousands."""
    return text.replace(_OTHER[mark], "").replace(mark, ".")


def number_of(text: str) -> int | float | None:
    """A number with a decimal point; None if a float would lose digits of it."""
    if _WHOLE.fullmatch(text):
        return int(text) if len(text) <= 400 else None
    value = float(text)
    return value if Decimal(repr(value)) == Decimal(text) else None


@dataclass
class ColumnSurvey:
    """What is in a column: how many cells, and the decimal marks with which all are numbers."""

    filled: int = 0
    texts: int = 0
    marks: set[Mark] = field(default_factory=lambda: {".", ","})
    signs: set[str] = field(default_factory=set)  # points and commas in its text

    def add(self, cell: Cell) -> None:
        """Take one more cell into account."""
        if cell is None:
            return
        self.filled += 1
        if isinstance(cell, str):
            self.texts += 1
            self.marks = {mark for mark in self.marks if _NUMBER[mark].fullmatch(cell.strip())}
            self.signs |= set(".,").intersection(cell)


def decimal_marks(columns: Mapping[str, ColumnSurvey]) -> tuple[dict[str, Mark], list[str]]:
    """The decimal mark of each column of numbers, and the columns of which it is unclear.

    12,50 and 1.234,5 show it. Of 1,234 the other columns decide; if they do not, a comma is
    unclear, and a point is decimal.
    """
    numbers = {name: column for name, column in columns.items() if column.texts and column.marks}
    clear = {mark for column in numbers.values() if len(column.marks) == 1 for mark in column.marks}
    marks: dict[str, Mark] = {}
    for name, column in numbers.items():
        able = column.marks & clear if len(clear) == 1 else column.marks
        if len(able) == 1:
            marks[name] = next(iter(able))
        elif "," not in column.signs:
            marks[name] = "."
    return marks, [name for name in numbers if name not in marks]

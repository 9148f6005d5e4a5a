"""What messages and settings are made of: bounded numbers and texts, and a base that is strict.

Python's integers have no bound of their own, and one of 400 digits stops whoever makes a float of
it, long after it was accepted. Texts for true, and true for 1, are refused: `strict`.
"""

import json
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    FailFast,
    Field,
    GetJsonSchemaHandler,
)

T = TypeVar("T")

MAX_COUNT = 2**53 - 1  # the largest integer that every JSON reader keeps exactly
MAX_NUMBER = 2**31 - 1  # what an INTEGER column holds
MAX_SECONDS = 10**9  # 31 years
MAX_FACTOR = 1e9
SMALLEST = 1e-12  # its square is still a number of 32 bits, and so is what is divided by it
MAX_MEASURED = 1e15
MAX_STEPS_TOLD = 1000  # of a round, whose figures are reported one by one
MAX_DONORS_TOLD = 1000  # of a round, whose responses a receiver has checked
MAX_SAID = 10_000  # characters of what a person is told, in the log each time

Count = Annotated[int, Field(ge=0, le=MAX_COUNT, strict=True)]
Number = Annotated[int, Field(ge=0, le=MAX_NUMBER, strict=True)]
Positive = Annotated[int, Field(gt=0, le=MAX_NUMBER, strict=True)]
Share = Annotated[float, Field(ge=0, le=1, strict=True)]
Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS, strict=True)]
Deadline = Annotated[float, Field(gt=0, le=MAX_SECONDS, strict=True)]
Norm = Annotated[float, Field(ge=0, le=MAX_MEASURED, strict=True)]
Factor = Annotated[float, Field(ge=0, le=MAX_FACTOR, strict=True)]
PositiveFactor = Annotated[float, Field(ge=SMALLEST, le=MAX_FACTOR, strict=True)]
Decay = Annotated[float, Field(ge=0, lt=1, strict=True)]

# Of a machine's own settings, which a text of the environment may be.
TimeSpan = Annotated[float, Field(ge=0.001, le=MAX_SECONDS)]
# A timer takes 0 for no limit, and no wait for a process is longer than 24 days.
CpuSeconds = Annotated[float, Field(ge=0.001, le=86_400)]


def printable(text: str) -> str:
    """Somebody else's text for a terminal, which does what some characters say."""
    return "".join(each if each.isprintable() or each == "\n" else " " for each in text)


def plain(text: str) -> str:
    """The same in one line."""
    return printable(text).replace("\n", " ")


def escaped(text: str) -> str:
    """JSON for a terminal: without the characters that do something, some of which JSON leaves."""
    return "".join(
        each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text
    )


def said(text: str) -> str:
    """A coordinator's words, as its members' terminals and logs take them."""
    return printable(text[:MAX_SAID])


Word = Annotated[str, Field(max_length=200)]
Label = Annotated[Word, AfterValidator(plain)]  # of a coordinator, on terminals
Words = Annotated[str, AfterValidator(said)]
Several = Annotated[list[T], FailFast()]  # else each wrong one of a million is a fault in memory
# Without NUL: PostgreSQL stores JSON with one, but reads no part of it any more.
MAX_TOPICS = 10_000  # of a test set; each has a figure in each round's evaluation
Topic = Annotated[str, Field(max_length=200, pattern=r"^[^\x00]*$")]
Url = Annotated[str, Field(max_length=4096)]

# A part of an address: one with a slash, a question mark or dots alone would lead elsewhere.
Id = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,199}$")]

NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,62}$"
NAME_FORM = (
    "1 to 63 small letters, digits, dots, underscores and hyphens, with a letter or digit first, "
    "such as hospital-a"
)
Name = Annotated[str, Field(pattern=NAME_PATTERN)]


class Strict(BaseModel, extra="forbid", frozen=True, allow_inf_nan=False):
    """Base of bodies and settings. An unknown field is an error, and so is a NaN or an infinity.

    What is answered may have more fields later: clients ignore those, and the document allows them.
    """

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: Any, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        schema = handler(core_schema)
        if handler.mode == "serialization":
            handler.resolve_ref_schema(schema).pop("additionalProperties", None)
        return schema


def _measured(value: object) -> object:
    return None if isinstance(value, float) and not abs(value) <= MAX_MEASURED else value


# Training that has diverged measures no number, and JSON has none to say that with.
Measured = Annotated[
    Annotated[float, Field(ge=-MAX_MEASURED, le=MAX_MEASURED, strict=True)] | None,
    BeforeValidator(_measured),
]


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The `object_pairs_hook` of JSON that all read alike; raises ValueError for a key twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice")
    return found


_MOST_COMMAS, _MOST_TABLES = 1 << 20, 1 << 17
MOST_VALUES = f"{_MOST_COMMAS:,} values, of which {_MOST_TABLES:,} are lists or objects"


def too_many_values(data: bytes) -> bool:
    """Whether JSON that is mostly text has more than MOST_VALUES, by the signs between them.

    A value takes up to 130 bytes of memory while it is read, whatever it takes here, and a list or
    an object up to 1,400.
    """
    tables = data.count(b"[") + data.count(b"{")
    return tables > _MOST_TABLES or data.count(b",") > _MOST_COMMAS

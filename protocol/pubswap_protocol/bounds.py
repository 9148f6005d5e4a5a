"""Bounded numbers and texts for messages and settings, and their strict base class.

Python's integers are unbounded, and one of 400 digits would fail only when it is converted to a
float, long after it was accepted. `strict` refuses text where a boolean is due, and true for 1.
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

MAX_COUNT = 2**53 - 1  # the largest integer that every JSON parser keeps exactly
MAX_NUMBER = 2**31 - 1  # what an INTEGER column holds
MAX_SECONDS = 10**9  # 31 years
MAX_FACTOR = 1e9
SMALLEST = 1e-12  # its square still fits a float32, and so does a quotient by it
MAX_MEASURED = 1e15
MAX_REPORTED_STEPS = 1000  # steps of a round whose figures are reported one by one
MAX_REPORTED_DONORS = 1000  # donors of a round whose responses a receiver has checked
MAX_TERMS = 4 << 20  # characters of a run's terms; nearly all of them are the adapter's layout
MAX_JSON_BYTES = 1 << 20  # of a request's JSON body
MAX_SET_BYTES = 256 << 20  # of a problem set or a tokenizer
MAX_MEMBER_MESSAGE = 1 << 24  # bytes of a message to a member
MAX_TEXT_LENGTH = 10_000  # characters of a text for people, which is logged each time

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
PositiveShare = Annotated[float, Field(ge=SMALLEST, le=1, strict=True)]
# Far above any sensible value, and far below overflow.
Rounds = Annotated[int, Field(gt=0, le=10**6, strict=True)]
Clients = Annotated[int, Field(gt=0, le=10**5, strict=True)]
Group = Annotated[int, Field(gt=0, le=1 << 16, strict=True)]
Tokens = Annotated[int, Field(gt=0, le=1 << 24, strict=True)]

# For a machine's own settings, which may come as text from the environment.
TimeSpan = Annotated[float, Field(ge=0.001, le=MAX_SECONDS)]
# A timer takes 0 as no limit, and a wait for a process lasts at most 24 days.
CpuSeconds = Annotated[float, Field(ge=0.001, le=86_400)]
VERIFIER_SECONDS = 5.0  # CPU time for a response, at members and, by default, the coordinator


def printable(text: str) -> str:
    """Make foreign text safe for a terminal: control characters become spaces."""
    return "".join(char if char.isprintable() or char == "\n" else " " for char in text)


def plain(text: str) -> str:
    """Make foreign text safe for a terminal, in one line."""
    return printable(text).replace("\n", " ")


def escaped(text: str) -> str:
    """Make JSON safe for a terminal: escape control characters, some of which JSON leaves as is."""
    return "".join(
        char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text
    )


def safe_text(text: str) -> str:
    """A coordinator's text, shortened and made safe for its members' terminals and logs."""
    return printable(text[:MAX_TEXT_LENGTH])


Word = Annotated[str, Field(max_length=200)]
Label = Annotated[Word, AfterValidator(plain)]  # from a coordinator, for terminals
Words = Annotated[str, AfterValidator(safe_text)]
MAX_PARTS = 20  # of a weighted verifier
MAX_SHOWN = 500  # responses of an evaluation, for the operator to read
MAX_SHOWN_TEXT = 1000  # characters of each of their texts
ShownText = Annotated[str, Field(max_length=MAX_SHOWN_TEXT), AfterValidator(printable)]
Several = Annotated[list[T], FailFast()]  # else a million bad items mean a million errors in memory
MAX_SHOWN_BYTES = 1 << 18  # of all of them
MAX_TOPICS = 10_000  # in a test set; each has a figure in every round's evaluation
# Of all topics with their figures, so that an evaluation with its responses fits in a request.
MAX_TOPIC_BYTES = MAX_JSON_BYTES - MAX_SHOWN_BYTES - (1 << 16)
# Without NUL: PostgreSQL stores JSON with one, but can no longer read parts of it.
Topic = Annotated[str, Field(max_length=200, pattern=r"^[^\x00]*$")]
Url = Annotated[str, Field(max_length=4096)]

# A segment of a URL's path: a slash, a question mark or only dots would lead elsewhere.
Id = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,199}$")]

NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,62}$"
NAME_FORM = (
    "1 to 63 lowercase letters, digits, dots, underscores and hyphens, with a letter or digit "
    "first, such as hospital-a"
)
Name = Annotated[str, Field(pattern=NAME_PATTERN)]


class Strict(BaseModel, extra="forbid", frozen=True, allow_inf_nan=False):
    """Base class of bodies and settings. Unknown fields, NaN and infinity are errors.

    Responses may gain fields: clients ignore unknown ones, and the OpenAPI document allows them.
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


# Diverged training may measure NaN or infinity, which JSON cannot express; they become null.
Measured = Annotated[
    Annotated[float, Field(ge=-MAX_MEASURED, le=MAX_MEASURED, strict=True)] | None,
    BeforeValidator(_measured),
]


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An `object_pairs_hook` that raises ValueError for a duplicate key, which parsers read
    differently."""
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise ValueError("a key occurs twice")
    return unique


MAX_COMMAS, MAX_TABLES = 1 << 20, 1 << 17
VALUE_LIMITS = f"{MAX_COMMAS:,} values, or {MAX_TABLES:,} lists and objects"


def value_counts(data: bytes) -> tuple[int, int]:
    """The commas and the opening brackets of JSON, which bound its values, lists and objects."""
    return data.count(b","), data.count(b"[") + data.count(b"{")


def too_many_values(data: bytes) -> bool:
    """Whether mostly textual JSON has more than VALUE_LIMITS, judged by its commas and brackets.

    Parsing takes up to 130 bytes of memory per value, however short it is here, and up to 1,400 per
    list or object.
    """
    commas, tables = value_counts(data)
    return tables > MAX_TABLES or commas > MAX_COMMAS

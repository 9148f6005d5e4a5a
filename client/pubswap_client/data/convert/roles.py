"""Which columns become which fields of a problem."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pubswap_client.data.convert.table import OpenTable
from pubswap_protocol.command_line.amounts import first_few
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.verifiers import verifier_of

# {{...}} is braces, and {Column} a column. Quotes are in no column's name, but in JSON.
_BRACES = re.compile(r'\{\{([^{}]*)\}\}|\{([^{}"]+)\}')
_NAMED = re.compile(r"([\w.-]+)=(.+)", re.DOTALL)


@dataclass(frozen=True)
class CellText:
    """A column, or a text with columns in braces, as `{Subject}: {Text}`."""

    source: str

    @cached_property
    def is_template(self) -> bool:
        return any(found[2] for found in _BRACES.finditer(self.source))

    @cached_property
    def columns(self) -> list[str]:
        if not self.is_template:
            return [self.source]
        found = (match[2] for match in _BRACES.finditer(self.source))
        return list(dict.fromkeys(name for name in found if name))

    def filled(self, text_of: Callable[[str], str]) -> str:
        r"""The text with the columns' own in place of braces; \n in a template is a line's end."""
        if not self.is_template:
            return text_of(self.source)

        def inserted(found: re.Match[str]) -> str:
            return text_of(found[2]) if found[2] else f"{{{found[1]}}}"

        return _BRACES.sub(inserted, self.source.replace("\\n", "\n"))


@dataclass(frozen=True)
class Request:
    """What the user asks for; None is what the columns with the fields' own names give."""

    prompt: str
    answers: Sequence[str]
    id: str | None = None
    topic: str | None = None
    verifier: str | None = None
    metadata: Sequence[str] | None = None

    @property
    def wanted(self) -> set[str]:
        """The columns that must exist."""
        named = [column for _, column in map(named_column, self.metadata or ())]
        own = [column for column in (self.id, self.topic) if column is not None]
        return {*CellText(self.prompt).columns, *self._answer_columns, *own, *named}

    @property
    def _makes_object(self) -> bool:
        """Whether the answer is a JSON object: of several columns, or of one with a key."""
        only = self.answers[0]
        return len(self.answers) > 1 or bool(_NAMED.fullmatch(only) and "{" not in only)

    @property
    def _answer_columns(self) -> list[str]:
        if not self._makes_object:
            return CellText(self.answers[0]).columns
        return [column for _, column in map(named_column, self.answers)]

    def roles(self, table: OpenTable) -> "Roles":
        """The roles of a table's columns; raises InvalidSettings for an unknown verifier."""

        def usual(given: str | None, field: str) -> str | None:
            return field if given is None and field in table.columns else given

        verifier, constant = usual(self.verifier, "verifier"), None
        if verifier is not None and verifier not in table.columns:
            constant, verifier = _verifier(verifier, table), None
        id_, topic = usual(self.id, "id"), usual(self.topic, "topic")
        used = {*self.wanted, id_, topic, verifier}
        if self.metadata is None:
            further = [column for column in table.columns if column not in used]
            metadata = {column: column for column in further}
        else:
            metadata = _distinct(map(named_column, self.metadata), "--metadata")
        many = self._makes_object
        return Roles(
            prompt=CellText(self.prompt),
            answer=None if many else CellText(self.answers[0]),
            answers=_distinct(map(named_column, self.answers), "--answer") if many else {},
            id=id_,
            topic=topic,
            verifier=verifier,
            constant_verifier=constant,
            metadata=metadata,
        )


@dataclass(frozen=True)
class Roles:
    """Columns by the fields that they become; those of `answers` and `metadata` by their keys."""

    prompt: CellText
    answer: CellText | None
    answers: Mapping[str, str]
    id: str | None
    topic: str | None
    verifier: str | None
    constant_verifier: str | None
    metadata: Mapping[str, str]

    def of(self, column: str) -> list[str]:
        """What becomes of a column, as text for people."""
        answer = self.answer.columns if self.answer else ()
        found = ["prompt"] if column in self.prompt.columns else []
        found += ["answer"] if column in answer else []
        found += [f"answer, field {key}" for key, own in self.answers.items() if own == column]
        found += [name for name in ("id", "topic", "verifier") if getattr(self, name) == column]
        return found + [f"metadata.{key}" for key, own in self.metadata.items() if own == column]


def named_column(text: str) -> tuple[str, str]:
    """The key and the column of `key=Column`, or of a column alone."""
    match = _NAMED.fullmatch(text)
    return (match[1], match[2]) if match else (text, text)


def _distinct(pairs: Iterable[tuple[str, str]], option: str) -> dict[str, str]:
    columns: dict[str, str] = {}
    for key, column in pairs:
        if key in columns:
            raise InvalidSettings(f"{option} names {key!r} twice; write OTHER=COLUMN for one.")
        columns[key] = column
    return columns


def _verifier(name: str, table: OpenTable) -> str:
    try:
        verifier_of(name)
    except InvalidSettings as error:
        columns = first_few(table.columns, most=20)
        raise InvalidSettings(
            f"--verifier: {name!r} is neither a column ({columns}) nor a verifier. {error.detail}"
        ) from None
    return name

"""Which columns become which fields of a problem."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

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
        return any(name for _, name in _BRACES.findall(self.source))

    @cached_property
    def columns(self) -> list[str]:
        if not self.is_template:
            return [self.source]
        return list(dict.fromkeys(name for _, name in _BRACES.findall(self.source) if name))

    def filled(self, text_of: Callable[[str], str]) -> str:
        r"""The text with the columns' own in place of braces; \n in a template is a line's end."""

        def inserted(found: re.Match[str]) -> str:
            return text_of(found[2]) if found[2] else f"{{{found[1]}}}"

        return _BRACES.sub(inserted, self.source.replace("\\n", "\n"))


@dataclass(frozen=True)
class Roles:
    """Columns by the fields that they become; those of `answers` and `metadata` by their keys.

    `answers` make a JSON object; without them, `answer` is a text.
    """

    prompt: CellText
    answer: CellText
    answers: Mapping[str, str]
    id: str | None = None
    topic: str | None = None
    verifier: str | None = None
    metadata: Mapping[str, str] | None = None  # None for all further columns
    constant_verifier: str | None = None

    @property
    def answer_columns(self) -> list[str]:
        return list(self.answers.values()) or self.answer.columns

    @property
    def wanted(self) -> set[str]:
        """The columns that must exist."""
        named = {self.id, self.topic, *(self.metadata or {}).values()} - {None}
        return {*self.prompt.columns, *self.answer_columns, *filter(None, named)}

    def of_table(self, columns: Sequence[str]) -> "Roles":
        """The same with what columns that have a field's own name, and further ones, give.

        Raises InvalidSettings for an unknown verifier.
        """
        usual: dict[str, Any] = {
            field: field
            for field in ("id", "topic", "verifier")
            if field in columns and getattr(self, field) is None
        }
        roles = replace(self, **usual)
        if roles.verifier is not None and roles.verifier not in columns:
            _check_verifier(roles.verifier, columns)
            roles = replace(roles, verifier=None, constant_verifier=roles.verifier)
        if roles.metadata is None:
            used = {*roles.wanted, roles.verifier}
            further = {column: column for column in columns if column not in used}
            roles = replace(roles, metadata=further)
        return roles

    def of(self, column: str) -> list[str]:
        """What becomes of a column, as text for people."""
        found = ["prompt"] if column in self.prompt.columns else []
        found += ["answer"] if not self.answers and column in self.answer.columns else []
        found += [f"answer, field {key}" for key, own in self.answers.items() if own == column]
        found += [name for name in ("id", "topic", "verifier") if getattr(self, name) == column]
        metadata = self.metadata or {}
        return found + [f"metadata.{key}" for key, own in metadata.items() if own == column]


def answer_fields(texts: Sequence[str]) -> dict[str, str]:
    """The columns of an answer that is a JSON object: of several, or of one with a key."""
    several = len(texts) > 1 or ("{" not in texts[0] and _NAMED.fullmatch(texts[0]))
    return by_key(texts, "--answer") if several else {}


def by_key(texts: Sequence[str], option: str) -> dict[str, str]:
    """The columns of `key=Column`, or of a column alone, by their keys."""
    columns: dict[str, str] = {}
    for text in texts:
        match = _NAMED.fullmatch(text)
        key, column = (match[1], match[2]) if match else (text, text)
        if key in columns:
            raise InvalidSettings(f"{option} names {key!r} twice; write OTHER=COLUMN for one.")
        columns[key] = column
    return columns


def _check_verifier(name: str, columns: Sequence[str]) -> None:
    try:
        verifier_of(name)
    except InvalidSettings as error:
        known = first_few(columns, most=20)
        raise InvalidSettings(
            f"--verifier: {name!r} is neither a column ({known}) nor a verifier. {error.detail}"
        ) from None

"""Which columns become which fields of a problem."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from pubswap_protocol.errors import InvalidSettings

# {{...}} is braces, and {Column} a column. Quotes are in no column's name, but in JSON.
_BRACES = re.compile(r'\{\{([^{}]*)\}\}|\{([^{}"]+)\}')
_NAMED = re.compile(r"([\w.-]+)=(.+)", re.DOTALL)


@dataclass(frozen=True)
class CellText:
    """A column, or a text with columns in braces, as `{Subject}: {Text}`."""

    source: str

    @cached_property
    def columns(self) -> list[str]:
        names = (name for _, name in _BRACES.findall(self.source) if name)
        return list(dict.fromkeys(names)) or [self.source]

    @property
    def is_template(self) -> bool:
        return self.columns != [self.source]

    def filled(self, text_of: Callable[[str], str]) -> str:
        r"""The text with the columns' own in place of braces; \n in a template is a line's end."""

        def inserted(found: re.Match[str]) -> str:
            return text_of(found[2]) if found[2] else f"{{{found[1]}}}"

        return _BRACES.sub(inserted, self.source.replace("\\n", "\n"))


TEXT = ""  # the key of a column that is the whole answer


@dataclass(frozen=True)
class Roles:
    """Columns by the fields that they become; those of `answers` and `metadata` by their keys.

    `answers` make a JSON object, unless the key of the only one is TEXT.
    """

    prompt: CellText
    answers: Mapping[str, str]
    id: str | None = None
    topic: str | None = None
    verifier: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def wanted(self) -> set[str]:
        """The columns that must exist."""
        optional = filter(None, (self.id, self.topic))
        return {*self.prompt.columns, *self.answers.values(), *self.metadata.values(), *optional}

    def of_table(self, columns: Sequence[str]) -> "Roles":
        """The same with what columns that have a field's own name give."""
        usual: dict[str, Any] = {
            name: name
            for name in ("id", "topic", "verifier")
            if name in columns and getattr(self, name) is None
        }
        if "metadata" in columns and not self.metadata:
            usual["metadata"] = {"metadata": "metadata"}
        return replace(self, **usual)

    def of(self, column: str) -> list[str]:
        """What becomes of a column, as text for people."""
        found = ["prompt"] if column in self.prompt.columns else []
        for key, own in self.answers.items():
            if own == column:
                found.append("answer" if key == TEXT else f"answer, field {key}")
        found += [name for name in ("id", "topic", "verifier") if getattr(self, name) == column]
        return found + [f"metadata.{key}" for key, own in self.metadata.items() if own == column]


def answer_fields(texts: Sequence[str]) -> dict[str, str]:
    """The columns of an answer: a JSON object if they are several or have a key, else a text."""
    several = len(texts) > 1 or _NAMED.fullmatch(texts[0])
    return by_key(texts, "--answer") if several else {TEXT: texts[0]}


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

"""One entry of the ledger: a line of JSON that holds the hash of the entry before it."""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Self

from pydantic import BaseModel, Field, JsonValue, ValidationError

from pubswap_protocol import paths
from pubswap_protocol.digests import PATTERN, digest_of
from pubswap_protocol.errors import InvalidSettings

BEGINNING = digest_of(b"")  # `previous` of the first entry

KINDS = {
    ("POST", paths.ENROLL): "enrolment",
    ("POST", paths.HELLO): "hello",
    ("POST", paths.HEARTBEAT): "heartbeat",
    ("POST", paths.AWAY): "away",
    ("POST", paths.LINK): "question",
    ("POST", paths.UPLOADS): "upload",
    ("PATCH", paths.UPLOAD): "adapter",
    ("PUT", paths.UPLOAD): "upload",
    ("POST", paths.UPDATE): "update",
    ("GET", paths.PUBLIC_STEP): "question",
    ("POST", paths.PUBLIC_STEP_RESPONSES): "responses",
    ("POST", paths.EVALUATION): "evaluation",
}
_PATTERNS = {
    (method, re.compile(re.sub(r"{(\w+)}", r"(?P<\1>[^/?]+)", path) + r"(\?.*)?")): kind
    for (method, path), kind in KINDS.items()
}
_RUN = re.compile(re.sub(r"{(\w+)}", r"(?P<\1>[^/?]+)", paths.RUN) + r"([/?].*)?")


class Damaged(ValueError):
    """A line is not as the ledger wrote it."""


class Entry(BaseModel, extra="forbid", frozen=True, strict=True):
    """A request that was about to be sent, and its place in the hash chain."""

    number: int = Field(ge=1, description="1, 2, ... over all days.")
    at: str = Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$", description="UTC.")
    kind: str
    run: str | None = None
    round: int | None = None
    exchange: int | None = None
    method: str
    target: str = Field(
        description="Path and query, relative to the coordinator's address; for a bucket, its "
        "address without a query."
    )
    size: int = Field(ge=0, description="Bytes of the body.")
    digest: str = Field(pattern=PATTERN, description="Of the body.")
    content: JsonValue = Field(default=None, description="The body, if it is JSON and no secret.")
    kept: bool = Field(default=False, description="Whether the body's bytes are in `bodies`.")
    previous: str = Field(pattern=PATTERN, description="The hash of the entry before.")

    def line(self) -> bytes:
        """The entry as JSON, ending with its hash: the digest of everything before it."""
        text = json.dumps(self.model_dump(), ensure_ascii=False, separators=(",", ":"))[:-1]
        return f'{text},"hash":"{digest_of(text.encode())}"}}\n'.encode()

    @property
    def hash(self) -> str:
        """The hash of this entry, which is `previous` in the next one."""
        return str(json.loads(self.line())["hash"])

    @classmethod
    def parse(cls, line: bytes) -> Self:
        """Parse a line; raises Damaged unless `line()` gives exactly the same line."""
        try:
            values: dict[str, Any] = json.loads(line)
            values.pop("hash")
            entry = cls.model_validate(values)
            same = entry.line() == line
        except (ValueError, LookupError, TypeError, AttributeError, ValidationError):
            same = False
        if not same:
            raise Damaged
        return entry


def described(method: str, target: str) -> dict[str, Any]:
    """The kind of a request and, if it has them, its run, round and exchange."""
    for (of, pattern), kind in _PATTERNS.items():
        if of == method and (match := pattern.fullmatch(target)):
            return {"kind": kind, **dict(_identifiers(match.groupdict()))}
    if method == "PUT" and not target.startswith("/"):  # to a bucket: its whole address
        return {"kind": "adapter"}
    match = _RUN.fullmatch(target)
    return {"kind": "question" if method == "GET" else "other", "run": match and match["run"]}


def check_kinds(names: Iterable[str]) -> None:
    """Raise InvalidSettings for a name that is no entry's kind."""
    kinds = {*KINDS.values(), "other"}
    for name in names:
        if name not in kinds:
            raise InvalidSettings(
                f"{name!r} is no kind of request; the kinds are {', '.join(sorted(kinds))}."
            )


def _identifiers(groups: dict[str, str]) -> Iterator[tuple[str, str | int]]:
    for name, field in (("run", "run"), ("round", "round"), ("public_step", "exchange")):
        if name in groups:
            yield field, groups[name] if name == "run" else int(groups[name])

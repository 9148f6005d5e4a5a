"""Entries as text for people: a line each, and what was in it."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from pubswap_client.ledger.entry import Entry
from pubswap_client.ledger.ledger import body_path, day_files

Decode = Callable[[NDArray[np.int32]], str]


def entries(folder: Path) -> Iterator[Entry]:
    """All entries, in order; raises Damaged at the first that was changed."""
    for path in day_files(folder):
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):  # an unfinished one was never sent
                    yield Entry.parse(line)


def line(entry: Entry) -> str:
    """One entry: 2026-11-23 08:47:01  responses  round 3, exchange 2  12,345 bytes  blake3:…."""
    places = [
        f"{name} {value}"
        for name, value in (("round", entry.round), ("exchange", entry.exchange))
        if value is not None
    ]
    what = ", ".join(places) or f"{entry.method} {entry.target}"
    return (
        f"{entry.at[:19].replace('T', ' ')}  {entry.kind:10}  {what}  "
        f"{entry.size:,} bytes  {entry.digest}"
    )


def content(folder: Path, entry: Entry, decode: Decode | None) -> Iterator[str]:
    """What was in an entry's body, as lines; of responses their text, or their tokens' ids."""
    if entry.content is not None:
        yield json.dumps(entry.content, ensure_ascii=False)
    elif entry.kind == "responses" and entry.kept:
        yield from _responses(body_path(folder, entry.digest).read_bytes(), decode)
    elif entry.kind == "enrolment":
        yield "the invite, a secret"
    elif entry.kept:
        yield f"in {body_path(folder, entry.digest)}"


def _responses(body: bytes, decode: Decode | None) -> Iterator[str]:
    arrays = load(body)
    ends = iter(np.cumsum(arrays["lengths"]))
    begin = 0
    for prompt, lengths in zip(arrays["prompts"].tolist(), arrays["lengths"], strict=True):
        for number in range(len(lengths)):
            end = int(next(ends))
            tokens = arrays["tokens"][begin:end]
            text = json.dumps(decode(tokens), ensure_ascii=False) if decode else tokens.tolist()
            yield f"public prompt {prompt}, response {number + 1}: {text}"
            begin = end

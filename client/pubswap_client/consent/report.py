"""The ledger's entries as text for people: sums, one line each, and their contents."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from pubswap_client.consent.ledger import Entry, body_path
from pubswap_protocol.bounds import escaped
from pubswap_protocol.digests import digest_of_file

Decode = Callable[[NDArray[np.int32]], str]


def summary_line(entry: Entry) -> str:
    """One entry: 2026-11-23 08:47:01 UTC  responses  round 3, public step 2  12 bytes  blake3:…."""
    places = {"round": entry.round, "public step": entry.public_step}
    where = ", ".join(f"{name} {place}" for name, place in places.items() if place is not None)
    return (
        f"{entry.at[:19].replace('T', ' ')} UTC  {entry.kind:10}  "
        f"{where or f'{entry.method} {entry.target}'}  {entry.size:,} bytes  {entry.digest}"
    )


def sums(counted: Iterable[Entry]) -> list[tuple[str, int, int]]:
    """Each kind of request, how many there were, and the bytes of their bodies."""
    sizes = defaultdict[str, list[int]](list)
    for entry in counted:
        sizes[entry.kind].append(entry.size)
    return [(kind, len(each), sum(each)) for kind, each in sorted(sizes.items())]


def content(folder: Path, entry: Entry, decode: Decode | None) -> Iterator[str]:
    """An entry's body as lines; responses as text or, without `decode`, as token ids."""
    body = body_path(folder, entry.digest)
    if entry.content is not None:
        yield escaped(json.dumps(entry.content, ensure_ascii=False))
    elif entry.kind == "enrolment":
        yield "the invite, a secret"
    elif entry.kept and entry.kind != "responses":
        yield f"in the ledger's {body.relative_to(folder)}"
    elif entry.kept and (not body.is_file() or digest_of_file(body) != entry.digest):
        yield "not the body that was sent: see `pubswap client audit verify`"
    elif entry.kept:
        arrays = load(body.read_bytes())
        responses = iter(np.split(arrays["tokens"], np.cumsum(arrays["lengths"])))
        for prompt, lengths in zip(arrays["prompts"].tolist(), arrays["lengths"], strict=True):
            for number, _ in enumerate(lengths, 1):
                tokens = next(responses)
                said = decode(tokens) if decode else tokens.tolist()
                text = escaped(json.dumps(said, ensure_ascii=False))
                yield f"public prompt {prompt}, response {number}: {text}"

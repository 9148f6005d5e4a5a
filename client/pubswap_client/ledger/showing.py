"""Entries as text for people: one line each, their contents, and all of them in a signed report."""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from pubswap_client.ledger.entry import Entry
from pubswap_client.ledger.ledger import body_path, day_files
from pubswap_client.ledger.verifying import verify
from pubswap_client.signed_manifest import Kind, make_key, sign
from pubswap_protocol.bounds import escaped
from pubswap_protocol.digests import digest_of_file
from pubswap_protocol.errors import LedgerDamaged
from pubswap_protocol.files import whole_folder

REPORT = "report.md"

Decode = Callable[[NDArray[np.int32]], str]


def entries(folder: Path) -> Iterator[Entry]:
    """All entries, in order; raises Damaged at the first that was changed."""
    for path in day_files(folder):
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):  # an unfinished line's request was never sent
                    yield Entry.parse(line)


def line(entry: Entry) -> str:
    """One entry: 2026-11-23 08:47:01 UTC  responses  round 3, exchange 2  12 bytes  blake3:…."""
    labels = [
        f"{name} {value}"
        for name, value in (("round", entry.round), ("exchange", entry.exchange))
        if value is not None
    ]
    what = ", ".join(labels) or f"{entry.method} {entry.target}"
    return (
        f"{entry.at[:19].replace('T', ' ')} UTC  {entry.kind:10}  {what}  "
        f"{entry.size:,} bytes  {entry.digest}"
    )


def sums(counted: Iterable[Entry]) -> list[tuple[str, int, int]]:
    """Each kind of request, how many there were, and the bytes of their bodies."""
    requests, size = Counter[str](), Counter[str]()
    for entry in counted:
        requests[entry.kind] += 1
        size[entry.kind] += entry.size
    return [(kind, requests[kind], size[kind]) for kind in sorted(requests)]


def content(folder: Path, entry: Entry, decode: Decode | None) -> Iterator[str]:
    """An entry's body as lines; responses as text or, without `decode`, as token ids."""
    if entry.content is not None:
        yield escaped(json.dumps(entry.content, ensure_ascii=False))
    elif entry.kind == "responses" and entry.kept:
        path = body_path(folder, entry.digest)
        if not path.is_file() or digest_of_file(path) != entry.digest:
            yield "not the body that was sent: see `pubswap client audit verify`"
            return
        yield from _responses(path.read_bytes(), decode)
    elif entry.kind == "enrolment":
        yield "the invite, a secret"
    elif entry.kept:
        yield f"in the ledger's {body_path(folder, entry.digest).relative_to(folder)}"


def _responses(body: bytes, decode: Decode | None) -> Iterator[str]:
    arrays = load(body)
    ends = iter(np.cumsum(arrays["lengths"]))
    begin = 0
    for prompt, lengths in zip(arrays["prompts"].tolist(), arrays["lengths"], strict=True):
        for number in range(len(lengths)):
            end = int(next(ends))
            tokens = arrays["tokens"][begin:end]
            text: object = tokens.tolist()
            if decode:
                text = escaped(json.dumps(decode(tokens), ensure_ascii=False))
            yield f"public prompt {prompt}, response {number + 1}: {text}"
            begin = end


def export(ledger: Path, out: Path, key: Path, decode: Decode | None) -> str:
    """Write a report for an auditor to a new folder and sign it; returns the last entry's hash.

    Raises LedgerDamaged if the ledger was changed.
    """
    with whole_folder(out, mode=0o700) as folder:
        leave_out = shutil.ignore_patterns("lock", "*.tmp", folder.name)
        shutil.copytree(ledger, folder, ignore=leave_out, dirs_exist_ok=True)
        verdict = verify(folder)
        if verdict.faults:
            raise LedgerDamaged(f"{ledger} was changed: {verdict.faults[0]}.")
        (folder / REPORT).write_text(text(folder, verdict.head, decode), encoding="utf-8")
        make_key(key)
        files = (path for path in folder.rglob("*") if path.is_file())
        names = [path.relative_to(folder).as_posix() for path in files]
        sign(folder, names, key, Kind.AUDIT)
    return verdict.head


def text(folder: Path, head: str, decode: Decode | None) -> str:
    """The report: its content and how to check it, sums by kind, and each entry that has a body.

    Questions (requests without a body) are only counted; the ledger beside it lists them.
    """
    all_entries = list(entries(folder))
    sent = [entry for entry in all_entries if entry.size]
    days = [path.stem for path in day_files(folder)]
    period = f"{days[0]} to {days[-1]} (UTC)" if days else "no day"
    lines = [
        "# What was sent",
        "",
        f"{len(all_entries):,} requests from {period}, {len(sent):,} of them with a body. Each was "
        "recorded before it was sent. The last entry's hash is",
        "",
        f"    {head}",
        "",
        "Check the signature and the chain with",
        "",
        "    pubswap client audit verify FOLDER --key SIGNER.pub",
        "",
        "| what | requests | bytes |",
        "|---|---|---|",
        *(f"| {kind} | {number:,} | {size:,} |" for kind, number, size in sums(all_entries)),
        "",
    ]
    for entry in sent:
        lines += [f"## Entry {entry.number}", "", "    " + line(entry)]
        # Indented, so that no Markdown in a response takes effect.
        lines += ["    " + shown for shown in content(folder, entry, decode)] + [""]
    return "\n".join(lines)

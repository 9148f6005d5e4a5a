"""Entries as text for people: one line each, their contents, and all of them in a signed report."""

import json
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from pubswap_client.consent.ledger import Entry, body_path, day_files, entries, verify
from pubswap_client.signed_manifest import Kind, make_key, sign
from pubswap_protocol.bounds import escaped
from pubswap_protocol.digests import digest_of_file
from pubswap_protocol.errors import LedgerDamaged
from pubswap_protocol.files import whole_folder

REPORT = "report.md"

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
        (folder / REPORT).write_text(_report(folder, verdict.head, decode), encoding="utf-8")
        make_key(key)
        files = (path for path in folder.rglob("*") if path.is_file())
        sign(folder, [path.relative_to(folder).as_posix() for path in files], key, Kind.AUDIT)
    return verdict.head


def _report(folder: Path, head: str, decode: Decode | None) -> str:
    """The report: its content and how to check it, sums by kind, and each entry that has a body.

    Questions (requests without a body) are only counted; the ledger beside it lists them.
    """
    all_entries = list(entries(folder))
    sent = [entry for entry in all_entries if entry.size]
    days = [path.stem for path in day_files(folder)]
    period = f"{days[0]} to {days[-1]} (UTC)" if days else "no day"
    table = "\n".join(f"| {kind} | {n:,} | {size:,} |" for kind, n, size in sums(all_entries))
    text = f"""\
# What was sent

{len(all_entries):,} requests from {period}, {len(sent):,} of them with a body. Each was \
recorded before it was sent. The last entry's hash is

    {head}

Check the signature and the chain with

    pubswap client audit verify FOLDER --key SIGNER.pub

| what | requests | bytes |
|---|---|---|
{table}
"""
    for entry in sent:
        # Indented, so that no Markdown in a response takes effect.
        lines = [summary_line(entry), *content(folder, entry, decode)]
        text += "\n".join([f"\n## Entry {entry.number}\n", *(f"    {line}" for line in lines), ""])
    return text

"""A report of all that was sent, for an auditor: the ledger, its bodies, and a text, signed."""

import shutil
from collections import Counter
from pathlib import Path

from pubswap_client.ledger.entry import Entry
from pubswap_client.ledger.ledger import day_files
from pubswap_client.ledger.showing import Decode, content, entries, line
from pubswap_client.ledger.verifying import verify
from pubswap_client.signed_manifest import make_key, sign
from pubswap_protocol.errors import LedgerDamaged

REPORT = "report.md"


def export(ledger: Path, out: Path, key: Path, decode: Decode | None) -> str:
    """Write the report to a new folder and sign it; returns the last entry's hash.

    Raises LedgerDamaged if the ledger is not as it was written.
    """
    shutil.copytree(ledger, out, ignore=shutil.ignore_patterns("lock", "*.tmp"), dirs_exist_ok=True)
    verdict = verify(out)
    if verdict.faults:
        raise LedgerDamaged(f"{ledger} is not as it was written: {verdict.faults[0]}.")
    (out / REPORT).write_text(text(out, verdict.head, decode), encoding="utf-8")
    make_key(key)
    files = (path for path in out.rglob("*") if path.is_file())
    sign(out, [path.relative_to(out).as_posix() for path in files], key)
    return verdict.head


def text(folder: Path, head: str, decode: Decode | None) -> str:
    """The report: what it shows and how to check it, sums by kind, and each entry that has a body.

    Questions (requests without a body) are counted; the ledger beside has them one by one.
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
        "    pubswap export verify FOLDER --key SIGNER.pub",
        "    pubswap client audit verify FOLDER",
        "",
        "| what | requests | bytes |",
        "|---|---|---|",
        *_sums(all_entries),
        "",
    ]
    for entry in sent:
        lines += [f"## Entry {entry.number}", "", "    " + line(entry)]
        # Indented, a response stays text, whatever is in it.
        lines += ["    " + shown for shown in content(folder, entry, decode)] + [""]
    return "\n".join(lines)


def _sums(all_entries: list[Entry]) -> list[str]:
    requests = Counter(entry.kind for entry in all_entries)
    size: Counter[str] = Counter()
    for entry in all_entries:
        size[entry.kind] += entry.size
    return [f"| {kind} | {requests[kind]:,} | {size[kind]:,} |" for kind in sorted(requests)]

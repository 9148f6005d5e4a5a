"""That every receipt comes after its fsyncs and its commit, as the kernel saw it (strace).

A blob's receipt: fsync of the file, rename, fsync of the folder, sync of the log, answer.
Responses are a blob and a row alike. An update's receipt: the blob's file, name and folder from
before, then a sync of the log between the request and the answer.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from pubswap_protocol.draws import seed_for
from support.chaos.straced import Call, calls, missing, straced
from support.coordinator.coordinator import Federation, begun

__all__ = ["judge", "missing", "run"]

PUBLIC_STEPS = 2
ROUNDS = 200  # more than are needed
_DIGEST = re.compile(r"blake3(?::|%3[aA])([0-9a-f]{64})")
_KINDS = {
    "blob": re.compile(r"PUT /\S*/blobs/uploads/"),
    "update": re.compile(r"POST /\S*/rounds/\d+/update "),
    "responses": re.compile(r"POST /\S*/public-steps/\d+/responses "),
}


def run(
    count: int,
    seed: int,
    folder: Path,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """Have at least `count` receipts given under strace, and judge the order of the calls.

    Members ask one at a time, so that what is between a request and its answer is that request's.
    `lost` are the receipts that came too early.
    """
    trace = folder / "trace"
    with straced(folder, trace) as server:
        settings = {"rounds": ROUNDS, "local_steps": 2 * PUBLIC_STEPS, "seed": seed}
        federation = begun(server, **settings)
        given, round_ = 0, 0
        while given < count:
            round_ += 1
            for step in range(1, PUBLIC_STEPS + 1):
                for name in "ab":
                    _respond(federation, name, round_, step)
            for name in "ab":
                federation.submit(name, round_, federation.adapter(seed_for(seed, name, round_)))
            federation.wait_for(round_)
            given += 2 * (2 + PUBLIC_STEPS)
            progress(given)
    return judge(calls(trace)).result(given)


def _respond(federation: Federation, name: str, round_: int, step: int) -> None:
    data = federation.responses(name, round_, step, [step % 3, round_ % 4])
    federation.members[name].submit_responses(federation.run.id, round_, step, data)


@dataclass
class Verdict:
    """The receipts that were seen, by kind, and those that came too early."""

    seen: dict[str, int] = field(default_factory=dict)
    early: list[str] = field(default_factory=list)

    def result(self, given: int) -> dict[str, Any]:
        """The chaos's entry in the table; a receipt that was not seen counts as lost too."""
        tried = sum(self.seen.values())
        lost = len(self.early) + max(0, given - tried)
        return {"tried": tried, "lost": lost, **self.seen, "early": self.early[:20]}


@dataclass
class _Blob:
    """When a blob's steps were done, as positions in the trace; -1 for not yet."""

    file: int = -1
    renamed: int = -1
    folder: int = -1

    def ordered(self) -> bool:
        return 0 <= self.file < self.renamed < self.folder


def judge(trace: Iterable[Call]) -> Verdict:
    """Go through the calls, and look back at each receipt's answer."""
    verdict = Verdict()
    synced: dict[str, int] = {}
    blobs: dict[str, list[_Blob]] = {}  # each time that it was stored
    log_synced = -1
    asked: dict[str, tuple[int, str]] = {}
    for position, call in enumerate(trace):
        if call.name in ("fsync", "fdatasync"):
            synced[call.file] = position
            if call.file.endswith("-wal"):
                log_synced = position
            for name, stored in blobs.items():
                for blob in stored:
                    if blob.folder < 0 and PurePath(call.file) == PurePath(name).parent:
                        blob.folder = position
        elif call.name.startswith("rename"):
            blob = _Blob(synced.get(call.file, -1), position)
            blobs.setdefault(call.text, []).append(blob)
        elif call.name in ("read", "recvfrom") and call.file.startswith("TCP"):
            asked[call.file] = _request(asked.get(call.file), position, call.text)
        elif call.file.startswith("TCP") and call.text.startswith("HTTP/1.1 "):
            since, text = asked.pop(call.file, (position, ""))
            if call.text.startswith(("HTTP/1.1 200", "HTTP/1.1 201")):
                _receipt(verdict, since, text, blobs, log_synced)
    return verdict


def _request(before: tuple[int, str] | None, position: int, text: str) -> tuple[int, str]:
    """A request's first bytes and where they came; a body may come after the headers."""
    return (position, text) if before is None else (before[0], before[1] + text)


def _receipt(
    verdict: Verdict, since: int, text: str, blobs: dict[str, list[_Blob]], log_synced: int
) -> None:
    kind = next((kind for kind, form in _KINDS.items() if form.match(text)), None)
    if kind is None:
        return
    verdict.seen[kind] = verdict.seen.get(kind, 0) + 1
    if digest := _DIGEST.search(text):
        named = [stored for name, stored in blobs.items() if name.endswith(digest[1])]
    else:  # responses, whose digest the coordinator makes: what was renamed since they came
        named = [stored for stored in blobs.values() if stored[-1].renamed > since]
    what, stored = digest[1][:12] if digest else "", named[-1] if named else [_Blob()]
    # What was stored before, by somebody else or with the same answers, is durable already.
    blob = next((blob for blob in stored if blob.ordered()), stored[-1])
    begun_at = since if kind == "update" else max(since, blob.folder)
    if not blob.ordered():
        verdict.early.append(f"{kind} {what}: {blob}")
    elif log_synced < begun_at:
        verdict.early.append(f"{kind} {what}: the database's log was not synced")

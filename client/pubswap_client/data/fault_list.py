"""The file that lists every unusable reference answer of a set, for whoever corrects them."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pubswap_client.data.golds import Fault
from pubswap_protocol.errors import NotSaved
from pubswap_protocol.files import write_whole

_MAX_SHOWN = 200  # characters of an answer


def fault_list(beside: Path) -> Path:
    """The list beside a split's folder or a problem file; there is none if all are usable."""
    return beside.with_name(f"{beside.name.removesuffix('.jsonl')}-unusable-answers.jsonl")


def write_fault_list(path: Path, faults: Sequence[Fault], places: Mapping[str, str]) -> None:
    """List faults by their places, such as "line 9"; without faults, remove an earlier list.

    Raises NotSaved if the list cannot be written.
    """
    if not faults:
        with suppress(OSError):  # a folder that is only read has none
            path.unlink()
        return
    rows = {
        fault.problem.id: {
            "where": places.get(fault.problem.id, fault.problem.id),
            "id": fault.problem.id,
            "verifier": fault.verifier,
            "reason": fault.reason,
            "answer": fault.problem.answer[:_MAX_SHOWN],
        }
        for fault in faults
    }
    # Line 9 is before line 10.
    ordered = sorted(rows.values(), key=lambda row: (len(str(row["where"])), str(row["where"])))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotSaved(f"{path.parent} could not be created: {error.strerror}.") from None
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ordered)
    write_whole(path, text.encode())

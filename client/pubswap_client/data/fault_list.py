"""Lists beside a set of what is wrong with it, for whoever corrects it."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pubswap_client.data.golds import Fault
from pubswap_protocol.errors import NotSaved
from pubswap_protocol.files import write_whole

_MAX_SHOWN = 200  # characters of an answer


def beside(path: Path, name: str) -> Path:
    """The path of a list beside a folder or a JSONL file."""
    return path.with_name(f"{path.name.removesuffix('.jsonl')}-{name}.jsonl")


def write_list(path: Path, rows: Iterable[Mapping[str, Any]]) -> bool:
    """Write rows as JSONL, and whether there are any; without, remove an earlier list.

    Raises NotSaved if the list cannot be written.
    """
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    if not text:
        with suppress(OSError):  # a folder that is only read has none
            path.unlink()
        return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotSaved(f"{path.parent} could not be created: {error.strerror}.") from None
    write_whole(path, text.encode())
    return True


def fault_list(path: Path) -> Path:
    """The list of the unusable answers of a split's folder or a problem file."""
    return beside(path, "unusable-answers")


def write_fault_list(path: Path, faults: Sequence[Fault], places: Mapping[str, str]) -> None:
    """List faults by their places, such as "line 9"; raises as `write_list`."""
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
    write_list(path, sorted(rows.values(), key=lambda r: (len(str(r["where"])), str(r["where"]))))

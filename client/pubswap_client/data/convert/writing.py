"""Write a conversion's problems, and the list of what it left out."""

import json
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path

from pubswap_client.data.convert.converting import Conversion
from pubswap_protocol.errors import InvalidProblems, InvalidSettings, NotSaved
from pubswap_protocol.files import remedy, write_stream, write_whole
from pubswap_protocol.problems import problem_lines

_AT_ONCE = 100  # problems to a piece


def check_new(out: Path) -> None:
    """Raises InvalidSettings if something is there."""
    if out.exists():
        raise InvalidSettings(f"{out} already exists: remove it, or choose another --out.")


def write(conversion: Conversion, out: Path | None, advance: Callable[[int], None]) -> None:
    """Write the problems, if there are any; without `out`, only go through them.

    `advance` gets numbers of problems that are done. Raises NotSaved if the file cannot be written;
    there is none then, and InvalidProblems if the table cannot be read to its end.
    """
    pieces = _pieces(conversion, advance)
    if out is None:
        deque(pieces, maxlen=0)
    elif (head := next(pieces, None)) is not None:
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            write_stream(out, chain([head], pieces))
        except OSError as error:
            raise NotSaved(
                f"{out} could not be written: {error.strerror}. There is no such file now; "
                f"{remedy(error)}, or choose another --out."
            ) from None


def _pieces(conversion: Conversion, advance: Callable[[int], None]) -> Iterator[bytes]:
    problems = iter(conversion)
    try:
        while some := list(islice(problems, _AT_ONCE)):
            yield problem_lines(some)
            advance(len(some))
    except OSError as error:
        raise InvalidProblems(f"The table cannot be read: {error.strerror}.") from None


def write_left_out(conversion: Conversion, out: Path) -> Path | None:
    """List all rows that were left out beside the problems, in their order.

    Without any, removes an earlier list. Raises NotSaved.
    """
    listing = out.with_name(f"{out.name.removesuffix('.jsonl')}-left-out.jsonl")
    if not conversion.left_out:
        listing.unlink(missing_ok=True)
        return None
    rows = sorted(
        (number, reason) for reason, numbers in conversion.left_out.items() for number in numbers
    )
    unit = conversion.table.unit
    lines = (
        json.dumps({unit: number, "reason": reason}, ensure_ascii=False) + "\n"
        for number, reason in rows
    )
    write_whole(listing, "".join(lines).encode())
    return listing

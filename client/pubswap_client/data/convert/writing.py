"""Write a conversion's problems, and the list of what it left out."""

from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path

from pubswap_client.data.convert.converting import Conversion
from pubswap_client.data.fault_list import beside, write_list
from pubswap_protocol.errors import NotSaved
from pubswap_protocol.files import remedy, write_stream
from pubswap_protocol.problems import problem_lines

_AT_ONCE = 100  # problems to a piece


def write(conversion: Conversion, out: Path | None, advance: Callable[[int], None]) -> None:
    """Write the problems, if there are any; without `out`, only go through them.

    `advance` gets numbers of problems that are done. Raises NotSaved if the file cannot be written;
    there is none then.
    """
    pieces = _pieces(conversion, advance)
    if out is None:
        for _ in pieces:
            pass
    elif (head := next(pieces, None)) is not None:
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            write_stream(out, chain([head], pieces))
        except OSError as error:
            raise NotSaved(
                f"{out} could not be written: {error.strerror}; {remedy(error)}, or choose another "
                "--out."
            ) from None


def _pieces(conversion: Conversion, advance: Callable[[int], None]) -> Iterator[bytes]:
    problems = iter(conversion)
    while some := list(islice(problems, _AT_ONCE)):
        yield problem_lines(some)
        advance(len(some))


def write_left_out(conversion: Conversion, out: Path) -> Path | None:
    """List all rows that were left out beside the problems, in their order; see `write_list`."""
    reasons = {n: reason for reason, numbers in conversion.left_out.items() for n in numbers}
    rows = ({conversion.table.unit: n, "reason": reason} for n, reason in sorted(reasons.items()))
    listing = beside(out, "left-out")
    return listing if write_list(listing, rows) else None

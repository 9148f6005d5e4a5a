"""Wheels in parcels, for a machine to which only small files can be brought at a time.

    python -m benchmarks.gpu.parcels FOLDER

moves a folder's wheels to FOLDER/1, FOLDER/2, … A wheel larger than a parcel is cut into pieces
NAME.whl.1-of-7. The parcels can be brought in any order; `whole` joins the pieces.

This module imports the standard library only.
"""

import re
import shutil
import sys
from pathlib import Path

PARCEL = 44_000_000
"""Bytes in a parcel at most."""

_PIECE = re.compile(r"(?P<wheel>.+\.whl)\.(?P<number>\d+)-of-(?P<count>\d+)")


def divide(folder: Path, parcel: int = PARCEL) -> int:
    """Move a folder's wheels to numbered folders of at most `parcel` bytes; returns how many."""
    pieces = [piece for wheel in sorted(folder.glob("*.whl")) for piece in _cut(wheel, parcel)]
    number, room = 0, 0
    for piece in sorted(pieces, key=lambda path: path.stat().st_size, reverse=True):
        size = piece.stat().st_size
        if size > room:
            number, room = number + 1, parcel
            (folder / str(number)).mkdir()
        piece.rename(folder / str(number) / piece.name)
        room -= size
    return number


def whole(folder: Path, scratch: Path) -> tuple[list[Path], list[str]]:
    """The wheels anywhere below a folder, and what is missing of the others.

    Cut wheels are joined in `scratch`, one file each.
    """
    wheels, cut = [], dict[str, dict[int, Path]]()
    missing = []
    for path in sorted(folder.rglob("*.whl*")):
        if match := _PIECE.fullmatch(path.name):
            cut.setdefault(f"{match['wheel']} {match['count']}", {})[int(match["number"])] = path
        elif path.suffix == ".whl":
            wheels.append(path)
    for key, found in cut.items():
        name, count = key.split(" ")
        absent = [str(number) for number in range(1, int(count) + 1) if number not in found]
        if absent:
            missing.append(f"{name} (without its pieces {', '.join(absent)} of {count})")
            continue
        joined = scratch / name
        with joined.open("wb") as file:
            for number in sorted(found):
                with found[number].open("rb") as piece:
                    shutil.copyfileobj(piece, file)
        wheels.append(joined)
    return wheels, missing


def _cut(wheel: Path, parcel: int) -> list[Path]:
    """The wheel itself, or its pieces, which replace it."""
    count = -(-wheel.stat().st_size // parcel)
    if count <= 1:
        return [wheel]
    pieces = []
    with wheel.open("rb") as file:
        for number in range(1, count + 1):
            piece = wheel.with_name(f"{wheel.name}.{number}-of-{count}")
            piece.write_bytes(file.read(parcel))
            pieces.append(piece)
    wheel.unlink()
    return pieces


if __name__ == "__main__":
    sys.stdout.write(f"{divide(Path(sys.argv[1]))} parcels in {sys.argv[1]}\n")

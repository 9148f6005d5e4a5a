"""`plugin:<name>`: a function of an installed package, by an entry point in `pubswap.verifiers`.

The function is called as score(response, prompt=..., answer=..., metadata=...) and returns a number
from 0 to 1. All members of a run must have the same package: its digest is part of the verifier's
version. Nothing is ever downloaded.
"""

import csv
import hashlib
import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import Field

from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers.verifier import VERIFIERS, ShorthandVerifier

GROUP = "pubswap.verifiers"

Files = dict[str, Path]  # by their names within the package


@VERIFIERS.register
class Plugin(ShorthandVerifier):
    """Score by a function of an installed package; see docs/verifiers.md."""

    name = "plugin"

    entry: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]

    def score(self, response: str, problem: Problem) -> float:
        """Raises TypeError if the function returns something other than a number."""
        function, metadata = _function(self.entry), deepcopy(problem.metadata)
        with redirect_stdout(_Nowhere()):
            score = function(
                response, prompt=problem.question, answer=problem.answer, metadata=metadata
            )
        # A plain number, because more than that may be sent to another process.
        if isinstance(score, str | bytes):  # which float() would read
            raise TypeError(f"{type(score).__name__} is no number from 0 to 1")
        return float(score)

    def right_response(self, problem: Problem) -> str:
        return problem.answer

    def check(self) -> None:
        """Raises InvalidSettings if no installed package has it."""
        package_of(self.entry)

    def load(self) -> None:
        _function(self.entry)

    def versions(self) -> list[str]:
        """The package's name, version and digest, as one word.

        Raises InvalidSettings if no installed package has it, several have, or it is installed
        from a working tree outside `working_trees`.
        """
        package = package_of(self.entry)
        if package.editable and not _working_trees:
            raise InvalidSettings(
                f"The verifier {self} is installed from a working tree, which can change at any "
                "time. Build its wheel and install that: pip wheel --no-deps FOLDER; pip install "
                "FILE.whl. Only simulations accept a working tree."
            )
        return [str(package)]

    @property
    def plugins(self) -> tuple[str, ...]:
        return (str(self),)


_working_trees = False


@contextmanager
def working_trees() -> Iterator[None]:
    """Accept packages that are installed from a working tree, in this process, for simulations."""
    global _working_trees
    before, _working_trees = _working_trees, True
    try:
        yield
    finally:
        _working_trees = before


@dataclass(frozen=True, slots=True)
class Package:
    """An installed package, and the digest of its entry point and its own files.

    The digest covers sources, data and compiled files, which bind a platform. It does not cover
    metadata, scripts, bytecode caches and dependencies.
    """

    name: str
    version: str
    digest: str
    editable: bool

    def __str__(self) -> str:
        return "-".join(
            [self.name, self.version, *(["editable"] if self.editable else []), self.digest]
        )


def look_up() -> None:
    """Find all installed plug-ins, because a confined process cannot look for them any more."""
    for point in entry_points(group=GROUP):
        with suppress(InvalidSettings):
            package_of(point.name)


@cache
def package_of(entry: str) -> Package:
    """The package of an entry point, as it was first found by this process.

    Raises InvalidSettings if no installed package has the entry point, several have, or the
    package's files are not as they were installed.
    """
    point = _point(entry)
    distribution = point.dist
    assert distribution is not None, "an entry point comes from an installed distribution"
    editable = _is_editable(distribution)
    try:
        files = _module_files(point) if editable else _wheel_files(distribution)
        _check_origin(point, files)
        digest = _digest(point, files)
    except OSError as error:
        raise InvalidSettings(
            f"The package {distribution.name} of the verifier plugin:{entry} cannot be read: "
            f"{error}. Install it again."
        ) from None
    return Package(distribution.name, distribution.version, digest, editable)


@cache
def _point(entry: str) -> EntryPoint:
    found = [*entry_points(group=GROUP, name=entry)]
    if not found:
        others = sorted(point.name for point in entry_points(group=GROUP))
        listed = ", ".join(f"plugin:{name}" for name in others) or "none"
        raise InvalidSettings(
            f"The verifier plugin:{entry} is not installed. Install the package with the entry "
            f"point {entry!r} in {GROUP!r}, as the run's operator gives it, into the environment "
            f"of pubswap. Installed: {listed}."
        )
    if len(found) > 1:
        packages = " and ".join(sorted(str(point.dist and point.dist.name) for point in found))
        raise InvalidSettings(
            f"The verifier plugin:{entry} is in {packages}. Uninstall all but one of them."
        )
    point: EntryPoint = found[0]
    return point


def _is_editable(distribution: Distribution) -> bool:
    """Whether it is installed from a working tree; only an installed wheel lists its files."""
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    editable = origin.get("dir_info", {}).get("editable")
    return bool(editable) or distribution.read_text("RECORD") is None


def _wheel_files(distribution: Distribution) -> Files:
    """The files of an installed wheel, and what else is in its packages' folders.

    `Distribution.files` leaves missing ones out since Python 3.12.
    """
    record = distribution.read_text("RECORD") or ""
    rows = csv.reader(record.splitlines())
    names = [PurePosixPath(row[0]) for row in rows if row and row[0]]
    files = {
        str(name): Path(str(distribution.locate_file(str(name))))
        for name in names
        if not name.parts[0].endswith(".dist-info") and ".." not in name.parts
    }
    for name, path in [*files.items()]:
        root, _, rest = name.partition("/")
        if rest == "__init__.py":  # the folder is this package's alone
            files |= _folder_files(root, path.parent)
    return {name: path for name, path in files.items() if not _is_cache(name)}


def _module_files(point: EntryPoint) -> Files:
    """The files of the package or module that an entry point is in."""
    root = point.module.partition(".")[0]
    spec = find_spec(root)
    if spec and spec.origin and not spec.submodule_search_locations:
        return {f"{root}.py": Path(spec.origin)}
    folders = (spec and spec.submodule_search_locations) or ()
    return {name: path for at in folders for name, path in _folder_files(root, Path(at)).items()}


def _folder_files(root: str, folder: Path) -> Files:
    inside = {f"{root}/{path.relative_to(folder).as_posix()}": path for path in folder.rglob("*")}
    return {name: path for name, path in inside.items() if path.is_file() and not _is_cache(name)}


def _is_cache(name: str) -> bool:
    return "__pycache__" in name.split("/")


def _check_origin(point: EntryPoint, files: Files) -> None:
    """Raises InvalidSettings if Python would import the function from elsewhere."""
    module = point.module.replace(".", "/")
    spec = find_spec(point.module.partition(".")[0])
    here = any(name.startswith((f"{module}.", f"{module}/")) for name in files)
    origin = spec and spec.origin  # a namespace has none, and may be in several folders
    if not origin or not here or not _has(files, Path(origin)):
        raise InvalidSettings(
            f"The verifier plugin:{point.name} is {point.value}, which Python finds "
            f"{f'at {origin}' if origin else 'nowhere'}, not among the files of its package "
            f"{point.dist and point.dist.name}. Remove the other one, or PYTHONPATH, give a "
            "package without one its __init__.py, or install it again."
        )


def _has(files: Files, path: Path) -> bool:
    return any(path.name == file.name and path.samefile(file) for file in files.values())


def _digest(point: EntryPoint, files: Files) -> str:
    """SHA-256 of the entry point, and of names and contents in the order of names."""
    whole = hashlib.sha256(f"{point.name} = {point.value}\n".encode())
    for name, path in sorted(files.items()):
        whole.update(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {name}\n".encode())
    return whole.hexdigest()


@cache
def _function(entry: str) -> Callable[..., Any]:
    """Raises InvalidSettings if it cannot be imported, or is no function."""
    point = _point(entry)
    try:
        with redirect_stdout(_Nowhere()):
            function = point.load()
    except (Exception, SystemExit) as error:  # any: it is foreign code
        raise InvalidSettings(
            f"The verifier plugin:{entry} cannot be imported: {type(error).__name__}: {error}. "
            "Install what it needs, or a package without the fault."
        ) from None
    if not callable(function):
        raise InvalidSettings(
            f"The verifier plugin:{entry} is {point.value}, which is no function. Its entry point "
            "must name one."
        )
    return function  # type: ignore[no-any-return]


class _Nowhere(io.TextIOBase):
    """What foreign code prints, because stdout is the commands'. A sandbox may open no file."""

    def write(self, text: str) -> int:
        return len(text)

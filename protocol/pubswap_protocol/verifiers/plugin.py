"""`plugin:<name>`: a function of an installed package, by an entry point in `pubswap.verifiers`.

The function is called as score(response, prompt=..., answer=..., metadata=...) and returns a number
from 0 to 1. All members of a run must have the same package: its digest is part of the verifier's
version. It covers the package's own files, sources and data. It does not cover its dependencies.
Nothing is ever downloaded.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import Distribution, EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers.verifier import VERIFIERS, Short

GROUP = "pubswap.verifiers"
EDITABLE = "editable"  # in place of a digest's origin


@VERIFIERS.register
class Plugin(Short):
    """Score by a function of an installed package; see docs/verifiers.md."""

    name = "plugin"

    entry: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]

    def score(self, response: str, problem: Problem) -> float:
        score: float = _function(self.entry)(
            response, prompt=problem.prompt, answer=problem.answer, metadata=problem.metadata
        )
        return score

    def check(self) -> None:
        """Raises InvalidSettings if no installed package has it, or if it cannot be imported."""
        self.versions()
        try:
            _function(self.entry)
        except Exception as error:
            raise InvalidSettings(
                f"The verifier {self} cannot be imported: {type(error).__name__}: {error}."
            ) from None

    def versions(self) -> list[str]:
        """The package's name, version and digest, as one word.

        Raises InvalidSettings if no installed package has it, or several have.
        """
        return [package_of(self.entry)]

    @property
    def plugins(self) -> tuple[str, ...]:
        return (str(self),)


@cache
def package_of(entry: str) -> str:
    """The package of an entry point: name, version and digest, joined by hyphens.

    One that is installed from a working tree has 'editable' before its digest. Raises
    InvalidSettings if no installed package has the entry point, or several have.
    """
    point = _point(entry)
    distribution = point.dist
    assert distribution is not None, "an entry point comes from an installed distribution"
    files, origin = _files(distribution), ""
    if _is_editable(distribution):
        files, origin = _module_files(point), f"{EDITABLE}-"
    return f"{distribution.name}-{distribution.version}-{origin}{_digest(files)}"


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
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    return bool(origin.get("dir_info", {}).get("editable"))


def _files(distribution: Distribution) -> Iterator[tuple[str, Path]]:
    """The files that a wheel has installed, without bytecode and without its metadata."""
    for file in distribution.files or ():
        inside = not file.parts[0].endswith((".dist-info", ".data")) and ".." not in file.parts
        if inside and _is_source(file.as_posix()):
            yield file.as_posix(), Path(str(file.locate()))


def _module_files(point: EntryPoint) -> Iterator[tuple[str, Path]]:
    """The files of the package or module that an entry point is in."""
    root = point.module.partition(".")[0]
    spec = find_spec(root)
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in Path(folder).rglob("*"):
            if path.is_file() and _is_source(name := path.relative_to(folder).as_posix()):
                yield f"{root}/{name}", path
    if spec and spec.origin and not spec.submodule_search_locations:
        yield f"{root}.py", Path(spec.origin)


def _is_source(name: str) -> bool:
    return not name.endswith((".pyc", ".pyo")) and "__pycache__" not in name


def _digest(files: Iterator[tuple[str, Path]]) -> str:
    """SHA-256 of names and contents, in the order of names."""
    whole = hashlib.sha256()
    for name, path in sorted(files):
        whole.update(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {name}\n".encode())
    return whole.hexdigest()


@cache
def _function(entry: str) -> Callable[..., Any]:
    function = _point(entry).load()
    if not callable(function):
        raise InvalidSettings(f"The entry point {entry!r} in {GROUP!r} is no function.")
    return function  # type: ignore[no-any-return]

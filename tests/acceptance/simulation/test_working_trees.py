"""A verifier under development, in a simulation."""

import os
import subprocess
from pathlib import Path

import pytest

from pubswap_client.demo.processes import PUBSWAP
from pubswap_simulation.results import read_results
from support.client.simulations import command, write_recipe
from support.wheels import example, pip

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("unmeasured")]


def test_a_simulation_takes_a_working_tree(tmp_path: Path) -> None:
    """The result says that it was one."""
    tree, site = example(tmp_path), tmp_path / "site"
    pip("install", "--no-build-isolation", "--target", site, "--editable", tree)
    found = [str(site), str(tree / "src"), os.environ.get("PYTHONPATH", "")]
    words = command(
        *(write_recipe(tmp_path / "recipe"), tmp_path / "store"),
        *("--set", "verifier=plugin:complaints", "--set", "rounds=1"),
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, found))}
    done = subprocess.run([*PUBSWAP, *words], env=env, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = read_results(tmp_path / "store")
    version = str(result.run.verifier_version)
    assert version.startswith("plugin:complaints@")
    assert "+complaint-triage-1.0.0-editable-" in version

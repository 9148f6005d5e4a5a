"""The units of deploy/systemd: commands that exist, verified and hardened by systemd's measure."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pubswap_protocol.cli import build_app
from pubswap_server.settings import ServerSettings

UNITS = Path(__file__).parents[3] / "deploy" / "systemd"
SERVICES = sorted(UNITS.glob("*.service"))
EXPOSED = 20  # of 100; the backup's had 84 before it was hardened

with_systemd = pytest.mark.skipif(
    not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed"
)


@pytest.mark.parametrize("unit", SERVICES, ids=lambda path: path.name)
def test_the_units_start_commands_that_exist(unit: Path) -> None:
    """Each command parses, and its environment names are settings."""
    text = unit.read_text()
    known = {f"PUBSWAP_{name}".upper() for name in ServerSettings.model_fields}
    assert set(re.findall(r"PUBSWAP_[A-Z_]+", text)) <= known
    commands = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    assert commands
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "/opt/pubswap/bin/pubswap"
        done = CliRunner().invoke(build_app(), [*arguments, "--help"])
        assert done.exit_code == 0, done.output


@with_systemd
def test_systemd_has_nothing_to_say_of_the_units(tmp_path: Path) -> None:
    """Also not of a directive that it does not know; the program is one that is here."""
    for unit in UNITS.iterdir():
        text = unit.read_text().replace("/opt/pubswap/bin/pubswap", "/bin/true")
        (tmp_path / unit.name).write_text(text)
    units = sorted(tmp_path.iterdir())
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True
    )
    about_ours = [line for line in done.stderr.splitlines() if "pubswap" in line]
    assert (done.returncode, about_ours) == (0, [])


@with_systemd
@pytest.mark.parametrize("unit", SERVICES, ids=lambda path: path.name)
def test_a_service_has_few_rights(unit: Path) -> None:
    """The backup no more than the coordinator."""
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSED}", unit]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr

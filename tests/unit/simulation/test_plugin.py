"""A researcher's own named values, in one file."""

from pathlib import Path

import numpy as np
import pytest

from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.methods.rules import RULES
from pubswap_protocol.settings import RunSettings
from pubswap_simulation.plugin import load_plugin

OWN = '''
import numpy as np

from pubswap_protocol.methods.rules.rule import RULES, Rule


@RULES.register
class Smallest(Rule):
    """The smallest of the clients' numbers."""

    name = "smallest"
    weighs = False
    more: float = 0.0

    def combine(self, rows, shares, out):
        out[:] = np.min(rows, axis=0) + self.more
'''


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry as it was, after each test."""
    monkeypatch.setattr(RULES, "_classes", dict(RULES._classes))


def combined(rule: object) -> float:
    """What a rule makes of 3 and 2."""
    out = np.empty(1)
    rows = [np.full(1, number, np.float32) for number in (3, 2)]
    RULES.read(rule).combine(rows, [0.5, 0.5], out)
    return float(out[0])


def test_a_plugin_s_values_are_settings_like_any_other(tmp_path: Path) -> None:
    """By name and with parameters, in all that reads settings; loading twice changes nothing."""
    path = tmp_path / "own.py"
    path.write_text(OWN)
    assert load_plugin(path) == load_plugin(path)
    run = RunSettings.model_validate({"aggregation": {"rule": {"name": "smallest", "more": 0.5}}})
    assert combined(run.aggregation.rule) == 2.5
    assert "smallest" in str(RunSettings.model_json_schema())


def test_a_changed_plugin_replaces_its_own_values_alone(tmp_path: Path) -> None:
    """A researcher edits the file in a notebook; PubSwap's own rules cannot be replaced."""
    path = tmp_path / "own.py"
    path.write_text(OWN)
    load_plugin(path)
    path.write_text(OWN.replace("np.min", "np.max"))
    load_plugin(path)
    assert combined("smallest") == 3
    path.write_text(OWN.replace('"smallest"', '"fedit"'))
    with pytest.raises(InvalidSettings, match="The aggregation rule 'fedit' exists already"):
        load_plugin(path)
    assert combined("fedit") == 2.5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read"),
        ("import nowhere", "ModuleNotFoundError: No module named 'nowhere'"),
        ("def", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit"),
        (
            "from pubswap_protocol.verifiers.verifier import VERIFIERS, Verifier\n"
            "@VERIFIERS.register\nclass Yes(Verifier):\n    name = 'yes'\n",
            "a verifier comes from a package",
        ),
    ],
)
def test_a_plugin_that_cannot_be_used_is_refused(
    tmp_path: Path, text: str | None, said: str
) -> None:
    """With the file's name and what failed, and no traceback."""
    path = tmp_path / "own.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InvalidSettings, match=said) as raised:
        load_plugin(path)
    assert str(path) in raised.value.detail


def test_a_plugin_without_py_in_its_name_is_not_passed_over(tmp_path: Path) -> None:
    """Python imports no other name; the simulation would go on without it."""
    (tmp_path / "own.txt").write_text(OWN)
    with pytest.raises(InvalidSettings, match=r"own\.txt is not a Python file"):
        load_plugin(tmp_path / "own.txt")

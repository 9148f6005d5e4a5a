"""The figures of `scripts/diagnose_exchange.py` against hand calculations."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "diagnose_exchange.py"


@pytest.fixture(scope="module")
def diagnosis() -> ModuleType:
    spec = importlib.util.spec_from_file_location("diagnose_exchange", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["diagnose_exchange"] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def test_keep_fills_up_to_half_with_what_peers_have(diagnosis: ModuleType) -> None:
    """For two clients and three prompts with four responses each."""
    yes, no = True, False
    first = [[no, no, no, no], [no, no, no, no], [yes, yes, no, no]]
    second = [[no, yes, no, no], [no, no, no, no], [yes, yes, yes, yes]]
    found = list(diagnosis.groups([first, second]))
    assert [group.replaced for group in found] == [1, 0, 0, 0, 0, 0]
    assert [group.rescued for group in found] == [True, False, False, False, False, False]
    assert [group.has_signal for group in found] == [False, True, False, False, True, False]


def test_a_donated_response_has_the_advantage_of_its_new_group(
    diagnosis: ModuleType,
) -> None:
    """One right of eight, plus three donated ones: 1/2 over sqrt(2/7)."""
    group = diagnosis.Group(right=1, of_peers=20, size=8)
    assert group.replaced == 3
    assert group.advantage == pytest.approx(0.5 / (2 / 7) ** 0.5)


def test_a_round_without_right_responses_has_no_advantage_and_no_likelihood(
    diagnosis: ModuleType,
) -> None:
    """Nothing was donated and nothing right sampled; the shares are still shown."""
    row = diagnosis._row("keep", 1, [diagnosis.Group(right=0, of_peers=0, size=4)], [])
    assert row[3:5] + row[-2:] == ["0.0 %", "100.0 %", "", ""]

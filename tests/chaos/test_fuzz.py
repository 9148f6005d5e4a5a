"""A short run of the fuzzer, and that it notices what it is for."""

from pathlib import Path

import pytest

from chaos.faults import fuzz
from pubswap_protocol.tensors import safetensors_header
from support.chaos.mutations import make


@pytest.mark.full
def test_no_input_is_read_wrongly(tmp_path: Path) -> None:
    """2,000 inputs: accepted as the safetensors library reads them, or refused with our errors."""
    result = fuzz.run(2_000, 20261121, tmp_path)
    assert (result["tried"], result["lost"]) == (2_000, 0)
    assert result["slowest_seconds"] < 1
    assert result["peak_mb"] < 200


def test_an_input_is_its_seed_and_number() -> None:
    """So that a lost one can be looked at again."""
    assert [make(3, n) for n in range(300)] == [make(3, n) for n in range(300)]
    assert make(3, 1) != make(4, 1)


def test_many_inputs_pass_the_first_checks(tmp_path: Path) -> None:
    """An input that is refused for its first byte tests nothing: a good share is accepted."""
    path = tmp_path / "input"
    inputs = [make(5, number) for number in range(2000)]
    accepted = sum(
        (fuzz.check_adapter if made.adapter else fuzz.check_responses)(made.data, path)
        for made in inputs
        if not made.valid
    )
    headers = sum(fuzz.check_header(made.data) for made in inputs)
    assert accepted > 30
    assert headers > 200


@pytest.mark.parametrize("broken", ["duplicates", "gaps"])
def test_a_reader_that_forgets_a_check_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """Without the check for keys that occur twice, or for offsets, inputs are lost."""
    if broken == "duplicates":
        monkeypatch.setattr(safetensors_header, "unique_keys", dict)
    else:
        monkeypatch.setattr(safetensors_header, "is_count", lambda value: True)
    assert fuzz.fuzz(400, 1, tmp_path)["lost"] > 0

"""Results in a store, also those of older versions."""

import json
from pathlib import Path

import pytest

from pubswap_client.recipes.inheritance import shipped_folder
from pubswap_protocol.errors import InvalidSettings
from pubswap_simulation.reporting.methods import references, row_of
from pubswap_simulation.results import RESULT, RUNS, read_result, read_results
from support.client.results import make_result, write_store

STUDY = shipped_folder() / "small" / "study"


def test_settings_of_an_older_version_are_read_as_data(tmp_path: Path) -> None:
    """Settings, values and figures that are gone today are no errors, and rows name them."""
    store = write_store(tmp_path, [make_result([0.4, 0.5]), make_result([0.4, 0.6])])
    path = store / RUNS / "0001" / RESULT
    old = json.loads(path.read_text())
    old["run"]["settings"]["grpo"] |= {"clipping": "gone", "gone": 1}
    old["run"]["settings"]["verifier"] = "reasoning_gym:gcd"
    old["run"] |= {"gone": ["seed"]}
    old["setting"] |= {"grpo.gone": 1, "grpo.clipping": "gone"}
    del old["run"]["settings"]["wire"]
    path.write_text(json.dumps(old))
    results = list(read_results(store))
    settings = results[1].run.settings
    assert (settings.grpo.clipping.name, settings.wire.precision) == ("gone", "float32")
    assert str(settings.verifier) == "reasoning_gym:gcd"
    usual = references(results, ["grpo.gone", "grpo.clipping"])
    assert [row_of(result, usual).variant for result in results] == [
        (),
        (("grpo.clipping", "gone"), ("grpo.gone", 1)),
    ]
    path.write_text(json.dumps(old | {"seed": None}))
    with pytest.raises(InvalidSettings, match="seed"):
        list(read_results(store))


def test_all_results_of_the_study_are_read() -> None:
    """Of today's and of past settings."""
    folders = [path.parent for path in STUDY.glob(f"**/{RESULT}")]
    assert len(folders) > 100
    for folder in folders:
        assert read_result(folder).evaluations

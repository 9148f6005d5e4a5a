"""Each of transformers' causal models trains as docs/models.md says.

The operator, who has no torch, and the members must agree on the layers of each.
"""

import importlib.util
import json
from pathlib import Path

import pytest
import transformers

from support.models.every_model import TABLE, UNLISTED, model_types, way

ROOT = Path(__file__).parents[4]
FAILS = "not trained: clients fail"


def listed() -> dict[str, str]:
    """The way of each model type on the page."""
    part = (ROOT / "docs/models.md").read_text(encoding="utf-8").partition("## All model types")[2]
    rows = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("| ")]
    return {kind: row[0] for row in rows if len(row) == 2 for kind in row[1].split(", ")}


made_with = json.loads(TABLE.read_text(encoding="utf-8"))["transformers"]
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(transformers.__version__ != made_with, reason="made with another version"),
    pytest.mark.filterwarnings("ignore"),  # transformers and PEFT warn about unusual models
]


@pytest.mark.parametrize("kind", model_types())
def test_a_small_model_of_each_type_trains_as_listed(kind: str, tmp_path: Path) -> None:
    """A client refuses none that the operator accepts, and samples what the model says."""
    expected = listed().get(kind)
    if expected is None:
        assert way(kind, tmp_path).startswith(UNLISTED)
    elif expected == FAILS:
        with pytest.raises(Exception):  # noqa: B017  whatever its layers raise
            way(kind, tmp_path)
    else:
        assert way(kind, tmp_path) == expected


def test_the_table_of_names_is_transformers_own() -> None:
    """`scripts/make_text_models.py` writes the same again."""
    spec = importlib.util.spec_from_file_location("table", ROOT / "scripts/make_text_models.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.written(script.table()) == TABLE.read_text(encoding="utf-8")

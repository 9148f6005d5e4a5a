"""The shipped recipes: that they are the paper's experiments, and can be found and run."""

import tomllib
from pathlib import Path

import pytest

from pubswap_client.recipes import inheritance
from pubswap_client.recipes.check import impossible, repeated, variants
from pubswap_client.recipes.inheritance import shipped_folder, shipped_recipes
from pubswap_client.recipes.recipe import load_recipe, read_recipe
from pubswap_client.recipes.shown import toml_text, values_and_notes
from pubswap_protocol.methods.method import FedProx, PubSwap
from pubswap_protocol.settings import RunSettings

ROOT = Path(__file__).parents[4]

QWEN3, QWEN25 = "Qwen/Qwen3-1.7B", "Qwen/Qwen2.5-Math-1.5B"
QWEN4B, LLAMA = "Qwen/Qwen3-4B-Instruct-2507", "meta-llama/Llama-3.2-3B-Instruct"
USUAL = {10: 360, 40: 360, 90: 360, 120: 360}

# For each: base model, data, alpha, private, public, test, b, and total steps by tau.
PAPER = {
    "qwen3-1.7b-math": (QWEN3, "math", 0.3, 2500, 1250, 1250, 8, USUAL),
    "qwen2.5-math-1.5b-math": (QWEN25, "math", 0.3, 2500, 1250, 1250, 8, USUAL),
    "qwen3-1.7b-deepmath": (QWEN3, "deepmath", 0.3, 4000, 3000, 1000, 8, USUAL),
    "qwen2.5-math-1.5b-deepmath": (QWEN25, "deepmath", 0.3, 4000, 3000, 1000, 8, USUAL),
    "qwen3-4b-deepmath": (QWEN4B, "deepmath", 0.3, 4000, 3000, 1000, 4, USUAL),
    "llama-3.2-3b-medical": (
        LLAMA,
        "medical",
        0.3,
        3956,
        1977,
        1977,
        8,
        {10: 540, 40: 520, 90: 540, 120: 600},
    ),
    "qwen3-1.7b-deepmath-alpha0.1": (
        QWEN3,
        "deepmath",
        0.1,
        4000,
        3000,
        1000,
        8,
        {40: 360, 90: 360, 120: 360},
    ),
    "qwen3-1.7b-deepmath-periods": (
        QWEN3,
        "deepmath",
        0.3,
        4000,
        3000,
        1000,
        8,
        {80: 320, 90: 360, 120: 360},
    ),
    "qwen2.5-math-1.5b-deepmath-periods": (
        QWEN25,
        "deepmath",
        0.3,
        4000,
        3000,
        1000,
        8,
        {90: 360, 120: 360},
    ),
}
FEDPROX = {("fedprox", mu) for mu in (0.001, 0.01, 0.1)}
BOTH = {("fedavg", ""), ("pubswap", "keep 2")}
MAIN = BOTH | FEDPROX | {("pubswap", "random 2")}
PERIODS = BOTH | FEDPROX | {("pubswap", "keep 4"), ("pubswap", "keep 8")}
METHODS = {
    "qwen3-1.7b-math": MAIN,
    "qwen2.5-math-1.5b-math": MAIN,
    "qwen3-1.7b-deepmath": MAIN,
    "qwen2.5-math-1.5b-deepmath": MAIN,
    "qwen3-4b-deepmath": BOTH,
    "llama-3.2-3b-medical": BOTH,
    "qwen3-1.7b-deepmath-alpha0.1": BOTH,
    "qwen3-1.7b-deepmath-periods": PERIODS,
    "qwen2.5-math-1.5b-deepmath-periods": PERIODS,
}


@pytest.mark.parametrize("name", PAPER)
def test_a_recipe_is_the_papers_experiment(name: str) -> None:
    """Model, data, sizes, b, steps, methods and tau match the paper's tables."""
    source, data, alpha, private, public, test, b, steps = PAPER[name]
    rows = set()
    for _, reading in variants(read_recipe(name)):
        recipe = reading.sound()
        spec = recipe.data.prepare
        assert spec is not None
        assert (recipe.model.source, spec.source, spec.alpha) == (source, data, alpha)
        assert tuple(spec.sizes()) == (private, public, test)
        assert (recipe.clients, recipe.grpo.prompts_per_step) == (4, b)
        assert recipe.rounds * recipe.local_steps == steps[recipe.local_steps]
        assert recipe.verifier.name == ("choice" if data == "medical" else "math")
        detail: str | float = ""
        if isinstance(recipe.method, FedProx):
            detail = recipe.method.mu
        if isinstance(recipe.method, PubSwap):
            detail = f"{recipe.method.strategy.name} {recipe.method.period}"
        rows.add((recipe.local_steps, (recipe.method.name, detail)))
    assert rows == {(tau, row) for tau in steps for row in METHODS[name]}


def test_the_base_writes_out_the_papers_settings() -> None:
    """base.toml repeats the settings' defaults, which were checked against the paper."""
    recipe = load_recipe("qwen3-1.7b-math").run_settings
    ours = {"rounds", "local_steps", "aggregation", "grpo"}
    assert recipe.model_dump(exclude=ours) == RunSettings().model_dump(exclude=ours)
    # Unlike our default, the paper's loss does not correct for the sampler's rounding.
    assert recipe.grpo == RunSettings().grpo.model_copy(update={"rollout_correction": "none"})
    waits = {"deadline_seconds"}
    assert recipe.aggregation.model_dump(exclude=waits) == RunSettings().aggregation.model_dump(
        exclude=waits
    )


@pytest.mark.parametrize("name", shipped_recipes())
def test_a_shipped_recipe_can_be_run(name: str) -> None:
    """With every setting of its sweep and without duplicates; it has a description."""
    reading = read_recipe(name)
    assert not reading.faults
    assert not list(impossible(reading))
    assert not list(repeated(reading))
    assert reading.sound().about


@pytest.mark.parametrize("name", shipped_recipes())
def test_a_resolved_recipe_is_the_same_recipe(name: str, tmp_path: Path) -> None:
    """`recipe show --toml` is self-contained, with the total steps of all the sweep's
    local_steps.
    """
    reading = read_recipe(name)
    path = tmp_path / "alone.toml"
    path.write_text(toml_text(reading))
    alone = read_recipe(path)
    assert alone.sound() == reading.sound()
    varied, expected = (
        [(setting, each.sound()) for setting, each in variants(whole)] for whole in (alone, reading)
    )
    assert varied == expected
    assert load_recipe(path, {"seed": 9}) == load_recipe(name, {"seed": 9})


def test_each_value_says_whether_it_is_given() -> None:
    """Values from a file or the command line have no note; others are defaults or follow from
    another value.
    """
    reading = read_recipe("qwen3-1.7b-deepmath-alpha0.1", {"method.period": 4})
    notes = {key: note for key, _, note in values_and_notes(reading)}
    expected = {
        "method.period": "",
        "data.prepare.alpha": "",
        "model.source": "",
        "wire.precision": "default",
        "rounds": "total_steps",
        "name": "default",
        "data.prepare.clients": "clients",
        "data.prepare.seed": "seed",
    }
    assert {key: notes[key] for key in expected} == expected


def test_defaults_that_messages_omit_are_shown() -> None:
    """For instance settings that earlier versions did not have."""
    shown = {key: (value, note) for key, value, note in values_and_notes(read_recipe("tour"))}
    assert shown["method.sampling_check"] == ("report", "default")
    assert shown["grpo.resample"] == (0, "default")


def test_without_total_steps_rounds_are_a_default(tmp_path: Path) -> None:
    """They then have the settings' default."""
    path = tmp_path / "run.toml"
    path.write_text('[model]\nsource = "a/b"\n[data]\nfolder = "split"\n')
    assert ("rounds", 9, "default") in list(values_and_notes(read_recipe(path)))


def test_a_wheel_has_the_recipes_where_they_are_looked_for() -> None:
    """The build configuration copies deploy/recipes into the package."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"][
        "targets"
    ]["wheel"]
    assert "deploy/recipes" in wheel["only-include"]
    inside = Path(inheritance.__file__).parent / "files"
    assert wheel["sources"]["deploy/recipes"] == inside.relative_to(ROOT / "client").as_posix()
    assert shipped_folder() == ROOT / "deploy" / "recipes"

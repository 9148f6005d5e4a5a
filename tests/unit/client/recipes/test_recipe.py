"""Recipes: files that extend one another, sweeps, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from pubswap_client.data.fault_list import fault_list
from pubswap_client.demo.demos import MODEL
from pubswap_client.recipes.check import impossible, repeated, variants
from pubswap_client.recipes.inheritance import changed, parse_set, shipped_folder
from pubswap_client.recipes.recipe import load_recipe, read_recipe
from pubswap_client.recipes.runfile import check_sets, make_sets, set_faults
from pubswap_client.recipes.shown import toml_text
from pubswap_client.recipes.tables import DataFiles, Sweep
from pubswap_protocol.errors import Conflict, InvalidProblems, InvalidSettings
from pubswap_protocol.methods.method import FedAvg, PubSwap
from pubswap_protocol.problems import Problem, read_problems, write_problems

BASE = """
name = "base"
about = "the base"
local_steps = 10
total_steps = 40
[model]
source = "a/model"
[data]
public = "public.jsonl"
test = "test.jsonl"
[grpo]
learning_rate = 1e-4
prompts_per_step = 4
[sweep]
seeds = [0, 1]
"""
SPLIT = {
    "source": "jsonl",
    "from": str(shipped_folder() / "small" / "problems.jsonl"),
    "verifier": "exact",
    "private_size": 8,
    "public_size": 8,
    "test_size": 8,
}


def write(folder: Path, text: str, name: str = "recipe.toml") -> Path:
    """Write a file next to the base that the tests extend."""
    folder.mkdir(exist_ok=True)
    (folder / "base.toml").write_text(BASE)
    (folder / name).write_text(text)
    return folder / name


def refused(path: Path, **overrides: Any) -> str:
    """The error of loading the file."""
    with pytest.raises(InvalidSettings) as caught:
        load_recipe(path, overrides)
    return caught.value.detail


def test_examples_come_from_a_file_beside_the_run_file(tmp_path: Path) -> None:
    """They are values of the run as if they stood there; a wrong line is a fault of the recipe."""
    examples, shot = tmp_path / "examples.jsonl", {"prompt": "1 + 1 =", "answer": "It is 2."}
    path = write(tmp_path, 'extends = "base.toml"\nfew_shot = "examples.jsonl"\n')
    assert "few_shot: " in refused(path) and "cannot be read" in refused(path)
    for text, said in (
        ("", "has no examples"),
        (
            json.dumps(shot) + '\n{"prompt": "1 + 2 ="}',
            "examples.jsonl, line 2: answer: it is miss",
        ),
        ('["1 + 1 ="]', "JSON array"),
        ("1 + 1 =", "line 1: Invalid JSON"),
    ):
        examples.write_text(text)
        assert said in refused(path)
    examples.write_text(json.dumps(shot) + "\n")
    named = load_recipe(path).run_settings
    assert [each.model_dump() for each in named.few_shot] == [shot]
    given = load_recipe(path, {"few_shot": [shot], "system_prompt": "Be terse."})
    assert given.few_shot == named.few_shot
    (tmp_path / "whole.toml").write_text(toml_text(read_recipe(path)))
    assert load_recipe(tmp_path / "whole.toml").run_settings == named


def test_a_file_extends_another_table_by_table(tmp_path: Path) -> None:
    """A table keeps the keys that the extending file does not name; `name` and `about` are not
    inherited.
    """
    path = write(tmp_path, 'extends = "base.toml"\n[grpo]\nlearning_rate = 5e-4\n')
    recipe = load_recipe(path, {"method.period": 5})
    assert (recipe.grpo.learning_rate, recipe.grpo.prompts_per_step) == (5e-4, 4)
    assert (recipe.name, recipe.about, recipe.method.period) == ("recipe", "", 5)
    assert recipe.run_settings.local_steps == 10
    assert "name" not in type(recipe.run_settings).model_fields


def test_a_file_can_extend_a_shipped_recipe_by_its_name(tmp_path: Path) -> None:
    """So a researcher's file need not copy the paper's settings."""
    path = write(tmp_path, 'extends = "qwen3-4b-deepmath"\n[grpo]\nlearning_rate = 2e-5\n')
    recipe = load_recipe(path)
    assert (recipe.grpo.prompts_per_step, recipe.grpo.learning_rate) == (4, 2e-5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('extends = "recipe.toml"', "the files form a circle: recipe.toml extends recipe.toml"),
        ('extends = "gone.toml"', "extends: there is no file"),
        ("extends = 3", "extends: give the path of one file, not 3"),
        ('extends = "qwen3-1.7b-mth"', "Did you mean 'qwen3-1.7b-math'"),
    ],
)
def test_what_cannot_be_extended_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """A cycle, a missing file, a wrong type, and a misspelt name."""
    assert message in refused(write(tmp_path, text))


def test_paths_are_relative_to_the_file_that_names_them(tmp_path: Path) -> None:
    """A base in another folder refers to its own neighbours; an override to the working folder."""
    write(tmp_path / "far", "")
    (tmp_path / "near" / "weights").mkdir(parents=True)
    path = tmp_path / "near" / "recipe.toml"
    path.write_text('extends = "../far/base.toml"\n[model]\nsource = "weights"\n')
    recipe = load_recipe(path)
    assert recipe.data.public == (tmp_path / "far" / "public.jsonl")
    assert recipe.model.source == "weights"
    assert Path(recipe.model.location) == tmp_path / "near" / "weights"
    given = load_recipe(path, {"data.public": "mine.jsonl", "model.source": "b/other"})
    assert given.data.public == Path.cwd() / "mine.jsonl"
    assert given.model.location == "b/other"


def test_an_override_replaces_the_alternative_that_it_excludes(tmp_path: Path) -> None:
    """`rounds` replaces `total_steps`; `folder` or `prepare` replaces files."""
    path = write(tmp_path, 'extends = "base.toml"\n')
    assert load_recipe(path).rounds == 4
    assert load_recipe(path, {"rounds": 3}).total_steps is None
    folder = load_recipe(path, {"data.folder": "/split"}).data
    assert (folder.public, folder.folder) == (None, Path("/split"))
    assert load_recipe(path, {"data.prepare": SPLIT}).data.public is None


def test_a_split_follows_the_run_in_clients_and_seed(tmp_path: Path) -> None:
    """Unless the recipe sets them, for instance for one split for all seeds."""
    path = write(tmp_path, 'extends = "base.toml"\n')
    run = {"data.prepare": SPLIT, "clients": 3, "seed": 8}
    spec = load_recipe(path, run).data.prepare
    assert spec is not None
    assert (spec.clients, spec.seed) == (3, 8)
    spec = load_recipe(path, run | {"data.prepare": SPLIT | {"seed": 1}}).data.prepare
    assert spec is not None
    assert spec.seed == 1


def test_the_sets_of_each_form_of_data_are_found(tmp_path: Path) -> None:
    """Named files are used as given; a split has fixed file names."""
    path = write(tmp_path, 'extends = "base.toml"\nclients = 2\n')
    named = load_recipe(path, {"data.private": ["/a.jsonl", "/b.jsonl"]}).data
    assert named.files(2).private == (Path("/a.jsonl"), Path("/b.jsonl"))
    split = DataFiles(
        Path("/s/public.jsonl"),
        Path("/s/test.jsonl"),
        (Path("/s/client-1.jsonl"), Path("/s/client-2.jsonl")),
    )
    assert load_recipe(path, {"data.folder": "/s"}).data.files(2) == split
    assert load_recipe(path, {"data.prepare": SPLIT}).data.files(2, Path("/s")) == split


@pytest.mark.parametrize(("tau", "rounds"), [(10, 54), (40, 13), (120, 5)])
def test_total_steps_can_depend_on_local_steps(tmp_path: Path, tau: int, rounds: int) -> None:
    """As a table by local_steps, with `else` for other values."""
    table = "total_steps = { else = 540, 40 = 520, 120 = 600 }\n"
    recipe = load_recipe(write(tmp_path, 'extends = "base.toml"\n' + table), {"local_steps": tau})
    assert (recipe.rounds, recipe.total_steps) == (rounds, rounds * tau)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"total_steps": 45}, "total_steps: 45 is not a multiple of local_steps = 10"),
        ({"total_steps": 5}, "use 10"),
        ({"total_steps": {"20": 40}}, "no value for local_steps = 10, nor `else`"),
        ({"total_steps": {"many": 40}}, "total_steps.many: the keys are numbers"),
        ({"total_steps": 40, "rounds": 4}, "rounds: it follows from total_steps"),
        ({"total_steps": 0}, "total_steps: Input should be greater than 0"),
        ({"local_steps": "x"}, "local_steps: Input should be a valid integer"),
        (
            {"swap.strategi": "keep"},
            "swap.strategi: there is no such key; did you mean method.strategy?",
        ),
        ({"learning_rate": 1.0}, "did you mean grpo.learning_rate?"),
        ({"metod.period": 2}, "metod.period: there is no such key; did you mean method.period?"),
        ({"extend": "x"}, "did you mean extends?"),
        ({"xyzzy": 1}, "xyzzy: there is no such key"),
        ({"grpo": 3}, "grpo: Input should be a valid dictionary"),
        ({"grpo.responses_per_prompt": 7}, "grpo.responses_per_prompt must be even"),
        ({"method.period": 11}, "method.period is larger than local_steps"),
        (
            {"clients": 2, "method.sampling_check": "exclude"},
            "with 2 clients each has only one; use",
        ),
        (
            {"aggregation.weights": "examples", "aggregation.weights.max_share": 0.25},
            "'examples' has no effect, because none of 4 clients",
        ),
        ({"verifier": "maths"}, "verifier: there is no verifier 'maths'"),
        ({"data.test": 4}, "data.test: Input is not a valid path"),
        ({"data.folder": "s", "data.public": "p"}, "data: give one of: public and test"),
        ({"data.private": ["a"]}, "data.private: 1 files for clients = 4"),
        ({"data.prepare": SPLIT | {"alpha": 0}}, "data.prepare.alpha: Input should be greater"),
        ({"data.prepare": SPLIT | {"clients": 3}}, "data.prepare.clients: 3, but clients = 4"),
        ({"data.prepare": SPLIT | {"public_size": 3}}, "public set holds 3 problems, but a step"),
        ({"data.prepare": SPLIT | {"private_size": 3}}, "each private set holds 3 problems"),
        ({"sweep.grid": [{"swap.priod": [2]}]}, "swap.priod: there is no such key; did you mean"),
        ({"sweep.grid": [{"member": ["alone"]}]}, "did you mean members?"),
        ({"sweep.grid": [{"seed": [1]}]}, "sweep.grid: seed: seeds are listed in sweep.seeds"),
        (
            {"sweep.grid": [{"members": ["none"]}]},
            "members is one of federated, alone, pooled, with-public",
        ),
        ({"sweep.grid": [{}]}, "a table has no axis"),
        ({"sweep.grid": [{"clients": []}]}, "the axis clients has no value"),
        ({"sweep.grid": 3}, "sweep.grid: Input should be a valid tuple"),
        ({"sweep.seeds": [1, 1]}, "sweep.seeds: a seed occurs twice"),
        ({"grpo": 1, "grpo.kl_beta": 0}, "grpo.kl_beta: grpo has the value 1, not a table"),
        ({"model.source": "~nobody-here/m"}, "~nobody-here/m: the home folder of this user"),
        ({"data.folder": "~nobody-here/d"}, "~nobody-here/d: the home folder of this user"),
        ({"data.folder": "s\0"}, r"'s\x00' is not a path: it contains a NUL character"),
    ],
)
def test_a_wrong_recipe_is_refused_with_the_key_and_the_reason(
    tmp_path: Path, overrides: dict[str, Any], message: str
) -> None:
    """Whether a key, a value or a combination is wrong."""
    path = write(tmp_path, 'extends = "base.toml"\n')
    assert message in refused(path, **overrides)


def test_a_public_set_without_a_test_set_is_refused(tmp_path: Path) -> None:
    """A run needs a test set as well as a public set."""
    path = write(tmp_path, '[model]\nsource = "a/b"\n[data]\npublic = "p.jsonl"\n')
    assert "data: test is missing: a JSONL file" in refused(path)


def test_all_that_is_wrong_is_found_at_once(tmp_path: Path) -> None:
    """Values of a wrong type hide neither each other nor contradictions elsewhere."""
    path = write(tmp_path, 'extends = "base.toml"\n')
    wrong = {"total_steps": 45, "grpo.temperature": "hot", "method.period": 11}
    reading = read_recipe(path, wrong)
    starts = ("total_steps: 45", "grpo.temperature: ", "method.period is larger")
    assert len(reading.faults) == len(starts)
    for fault, start in zip(reading.faults, starts, strict=True):
        assert fault.startswith(start)
    assert "(2 more: see `pubswap recipe check`)" in refused(path, **wrong)


def test_a_contradiction_hides_no_other_fault(tmp_path: Path) -> None:
    """A verifier and an axis that do not exist are found beside it."""
    text = 'extends = "base.toml"\nverifier = "maths"\n[[sweep.grid]]\nseed = [1]\n'
    faults = read_recipe(write(tmp_path, text), {"method.period": 11}).faults
    starts = ("verifier: ", "method.period is larger", "sweep.grid: seed: ")
    assert len(faults) == len(starts)
    for fault, start in zip(faults, starts, strict=True):
        assert fault.startswith(start)


def test_a_name_that_is_no_file_and_no_recipe_is_refused() -> None:
    """The message suggests the closest recipe."""
    with pytest.raises(InvalidSettings, match=r"Did you mean 'qwen3-1\.7b-math'\?"):
        load_recipe("qwen3-1.7b-mat")


def test_a_sweep_is_the_product_of_each_table() -> None:
    """Axes may be nested tables, a single value is an axis, and no setting occurs twice."""
    sweep = Sweep(
        grid=(
            {"method": "fedavg", "local_steps": [2, 4]},  # type: ignore[arg-type]
            {"method": {"period": [2, 4]}, "members": "federated"},
            {"method": ["fedavg"], "local_steps": [4]},
        )
    )
    assert list(sweep.settings()) == [
        {"method": "fedavg", "local_steps": 2},
        {"method": "fedavg", "local_steps": 4},
        {"method.period": 2, "members": "federated"},
        {"method.period": 4, "members": "federated"},
    ]
    assert list(Sweep().settings()) == [{}]


def test_each_client_alone_is_a_run_of_its_own() -> None:
    """The federation, four single clients and the pooled reference, each with two seeds."""
    sweep = Sweep(seeds=(0, 1), grid=({"members": ("federated", "alone", "pooled")},))
    assert sweep.runs(clients=4) == 2 * (1 + 4 + 1)


GRID = """
extends = "base.toml"
[[sweep.grid]]
method.name = "pubswap"
method.period = [2, 8]
local_steps = [5, 10]
[[sweep.grid]]
members = ["alone", "pooled"]
"""


def test_an_impossible_combination_of_a_sweep_is_named(tmp_path: Path) -> None:
    """The recipe itself is valid, but one point of its grid is not."""
    path = write(tmp_path, GRID)
    found = list(impossible(read_recipe(path)))
    start = "sweep: method = pubswap, method.period = 8, local_steps = 5: method.period"
    assert [fault.startswith(start) for fault in found] == [True]


def test_each_setting_of_a_sweep_has_its_recipe(tmp_path: Path) -> None:
    """Single-client baselines have no public steps, whatever the recipe's method."""
    path = write(tmp_path, GRID.replace("8", "4"))
    recipes = [reading.sound() for _, reading in variants(read_recipe(path, {"seed": 7}))]
    assert [(r.method, r.local_steps, r.rounds) for r in recipes] == [
        (PubSwap(period=2), 5, 8),
        (PubSwap(period=2), 10, 4),
        (PubSwap(period=4), 5, 8),
        (PubSwap(period=4), 10, 4),
        (FedAvg(), 10, 4),
        (FedAvg(), 10, 4),
    ]
    assert {recipe.seed for recipe in recipes} == {7}
    assert not list(repeated(read_recipe(path)))


def test_a_baseline_of_one_client_exchanges_with_nobody(tmp_path: Path) -> None:
    """A grid that combines single members with the method pubswap is refused."""
    text = GRID.replace("members =", 'method = "pubswap"\nmembers =').replace("8", "4")
    found = list(impossible(read_recipe(write(tmp_path, text))))
    assert len(found) == 2
    assert "method: 'alone' trains one client by itself" in found[0]


def test_settings_that_compute_the_same_are_named(tmp_path: Path) -> None:
    """A value written out and the default are one run, and one of two would be wasted."""
    text = 'extends = "base.toml"\n[[sweep.grid]]\nmethod.period = [2]\n[[sweep.grid]]\n'
    text += 'method.mode = ["synchronous"]\n'
    assert list(repeated(read_recipe(write(tmp_path, text)))) == [
        "method.mode = synchronous is the same run as method.period = 2"
    ]


def test_a_parameter_that_its_method_does_not_have_is_refused_in_a_sweep(tmp_path: Path) -> None:
    """fedavg has no period: two runs would have computed the same."""
    text = 'extends = "base.toml"\n[[sweep.grid]]\nmethod.name = "fedavg"\nmethod.period = [2, 4]\n'
    found = list(impossible(read_recipe(write(tmp_path, text))))
    assert len(found) == 2
    assert "method.period: 'fedavg' has no such parameter; 'pubswap' has it" in found[0]


def test_values_of_a_command_line_are_toml_or_text() -> None:
    """Numbers, booleans and lists are parsed; a bare word is a string."""
    options = ["method.period=4", "method.strategy=random", "a = [1, 2]", "b=true", "c=x=y"]
    assert parse_set(options) == {
        "method.period": 4,
        "method.strategy": "random",
        "a": [1, 2],
        "b": True,
        "c": "x=y",
    }
    with pytest.raises(InvalidSettings, match="write KEY=VALUE"):
        parse_set(["method.period"])
    with pytest.raises(InvalidSettings, match="extends is a key of files alone"):
        changed({}, parse_set(["extends=base.toml"]))


def problems(path: Path, count: int) -> Path:
    """Write a set of this many problems."""
    write_problems(path, [Problem(id=str(n), prompt=f"{n} =", answer=str(n)) for n in range(count)])
    return path


@pytest.mark.parametrize(
    ("public", "private", "message"),
    [
        (3, 4, "the public set holds 3 problems, but a step takes 4"),
        (4, 3, "client-1.jsonl holds 3 problems, but a step takes 4"),
    ],
)
def test_sets_with_less_than_a_step_takes_are_refused(
    tmp_path: Path, public: int, private: int, message: str
) -> None:
    """Before a model is loaded, and in `pubswap recipe check`."""
    recipe = load_recipe(
        write(tmp_path, 'extends = "base.toml"\nclients = 1\n'),
        {"data.private": [str(problems(tmp_path / "client-1.jsonl", private))]},
    )
    problems(tmp_path / "public.jsonl", public)
    problems(tmp_path / "test.jsonl", 1)
    with pytest.raises(InvalidProblems, match=message):
        check_sets(recipe, recipe.data.files(1))
    assert message in next(set_faults(recipe, None))


def test_a_set_with_an_answer_that_no_response_earns_is_refused(tmp_path: Path) -> None:
    """`run create` and `recipe check` name the lines and reasons, also of contradictions."""
    files = {
        "data.private": [str(problems(tmp_path / "client-1.jsonl", 8))],
        "data.public": str(problems(tmp_path / "public.jsonl", 8)),
        "data.test": str(problems(tmp_path / "test.jsonl", 8)),
    }
    recipe = load_recipe(write(tmp_path, 'extends = "base.toml"\nclients = 1\n'), files)
    bad = Problem(id="bad", prompt="?", answer="We add them and get 12.")
    for name, more, message in (
        ("test", bad, r"test.jsonl: 1 answers .*: line 9 \(it is a worked solution"),
        ("public", Problem(id="x", prompt="3 =", answer="4"), r"public.jsonl: 2 .*line 4 .*line 9"),
        ("client-1", bad.model_copy(update={"answer": " "}), "line 9: answer: it is blank"),
    ):
        path = tmp_path / f"{name}.jsonl"
        write_problems(path, [*read_problems(path), more])
        with pytest.raises(InvalidProblems, match=message):
            check_sets(recipe, recipe.data.files(1))
        if name == "public":
            rows = map(json.loads, fault_list(path).read_text().splitlines())
            assert [row["where"] for row in rows] == ["line 4", "line 9"]
        problems(path, 8)
    check_sets(recipe, recipe.data.files(1))


def test_a_public_set_may_be_small_where_no_step_is_public(tmp_path: Path) -> None:
    """fedavg takes no prompts from it."""
    path = write(tmp_path, 'extends = "base.toml"\nmethod = "fedavg"\n')
    problems(tmp_path / "public.jsonl", 1)
    problems(tmp_path / "test.jsonl", 1)
    assert not list(set_faults(load_recipe(path), None))


def test_the_split_of_a_recipe_is_made_where_it_is_asked_for(tmp_path: Path) -> None:
    """It is made once; a folder with another recipe's split is refused."""
    path = write(tmp_path, 'extends = "base.toml"\nclients = 2\n')
    model = {"model.source": str(MODEL)}
    recipe = load_recipe(path, {"data.prepare": SPLIT, **model})
    files = make_sets(recipe, tmp_path / "split")
    written = files.public.stat().st_mtime_ns
    assert make_sets(recipe, tmp_path / "split") == files
    assert files.public.stat().st_mtime_ns == written
    assert [file.name for file in files.private] == ["client-1.jsonl", "client-2.jsonl"]
    check_sets(recipe, files)
    other = load_recipe(path, {"data.prepare": SPLIT | {"alpha": 0.1}, **model})
    with pytest.raises(Conflict, match="alpha"):
        make_sets(other, tmp_path / "split")

    folder = load_recipe(path, {"data.folder": str(tmp_path / "split"), **model})
    assert make_sets(folder) == files
    assert not list(set_faults(folder, None))
    with pytest.raises(InvalidSettings, match=r"has no data\.prepare"):
        make_sets(folder, tmp_path / "elsewhere")
    files.private[1].unlink()
    assert "client-2.jsonl is missing" in next(set_faults(folder, None))


def test_what_a_split_would_be_made_from_must_be_there(tmp_path: Path) -> None:
    """The check looks for a local file, and downloads nothing."""
    path = write(tmp_path, 'extends = "base.toml"\n[data.prepare]\nsource = "math"\nfrom = "m"\n')
    assert f"data: from: there is no {tmp_path / 'm'}" in next(set_faults(load_recipe(path), None))

"""From a recipe and a command line to the jobs of a simulation."""

import json
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pubswap_client.demo.demos import MODEL
from pubswap_client.recipes.inheritance import shipped_folder
from pubswap_protocol.cli import build_app
from pubswap_protocol.errors import InvalidProblems, InvalidSettings, PubSwapError
from pubswap_protocol.methods.method import FedAvg
from pubswap_protocol.problems import Problem, write_problems
from pubswap_simulation.jobs import Planner, parse_axes, parse_seeds, parse_values, run_specs
from pubswap_simulation.results import Value, read_result

VALUES = {
    "name": "small",
    "clients": 3,
    "rounds": 4,
    "local_steps": 6,
    "grpo.prompts_per_step": 2,
    "model.source": str(MODEL),
    "data.public": "public.jsonl",
    "data.test": "test.jsonl",
    "data.private": ["a.jsonl", "b.jsonl", "c.jsonl"],
    "sweep.seeds": [0, 1],
}
GRID = """
[[sweep.grid]]
method = ["fedavg", "pubswap"]
[[sweep.grid]]
members = ["pooled", "alone"]
method = ["fedavg", "pubswap"]
[[sweep.grid]]
members = ["with-public"]
method = ["fedavg"]
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe for three clients, with a sweep of two seeds."""
    for name in ("public", "test", "a", "b", "c"):
        problems = [Problem(id=f"{name}{i}", prompt=f"{i}+1=", answer=str(i + 1)) for i in range(5)]
        write_problems(tmp_path / f"{name}.jsonl", problems)
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in VALUES.items()]
    path = tmp_path / "small.toml"
    path.write_text("".join(lines) + GRID)
    return path


def test_a_recipe_is_one_run_of_all_its_clients(tmp_path: Path, recipe: Path) -> None:
    """Each client has its own file, and quorums wait for everybody."""
    [job] = Planner(recipe, tmp_path, {"rounds": 2}).jobs(seed=5)
    assert {name: [p.name for p in paths] for name, paths in job.private.items()} == {
        "client-1": ["a.jsonl"],
        "client-2": ["b.jsonl"],
        "client-3": ["c.jsonl"],
    }
    assert (job.settings.seed, job.settings.rounds, job.steps) == (5, 2, 2 * 6 * 3)
    assert (job.settings.method.quorum, job.settings.aggregation.quorum) == (3, 3)
    assert job.setting == {"rounds": 2}


def test_a_sweep_is_all_settings_and_seeds_each_once(tmp_path: Path, recipe: Path) -> None:
    """Baselines have single clients with the same total steps, whatever else varies."""
    jobs = Planner(recipe, tmp_path, {}).sweep((), {})
    of_seed_0 = [(job.members, job.client, job.setting) for job in jobs if job.settings.seed == 0]
    assert of_seed_0 == [
        ("federated", None, {"method": "fedavg"}),
        ("federated", None, {"method": "pubswap"}),
        ("pooled", None, {"members": "pooled"}),
        ("alone", "client-1", {"members": "alone"}),
        ("alone", "client-2", {"members": "alone"}),
        ("alone", "client-3", {"members": "alone"}),
        ("with-public", None, {"members": "with-public", "method": "fedavg"}),
    ]
    assert len(jobs) == 2 * len(of_seed_0) == len({job.key() for job in jobs})
    pooled = jobs[2]
    assert (pooled.settings.clients, pooled.settings.method, pooled.steps) == (1, FedAvg(), 24)
    assert len(pooled.problems("pooled")) == 15
    assert {problem.id[:-1] for problem in jobs[6].problems("client-1")} == {"a", "public"}


@pytest.mark.parametrize("members", ["pooled", "alone"])
def test_a_baseline_of_one_client_needs_no_others(
    tmp_path: Path, recipe: Path, members: str
) -> None:
    """A baseline ignores the recipe's minimum number of members and their ranks."""
    several: dict[str, Value] = {
        "members.minimum": 2,
        "aggregation.rule": "svd",
        "aggregation.rule.min_rank": 1,
    }
    first, *_ = Planner(recipe, tmp_path, several | {"members": members}).jobs(seed=0)
    settings = first.prepared().create.settings
    assert (settings.clients, settings.members.minimum, settings.min_rank) == (1, None, None)


def test_a_clients_topics_are_those_of_its_own_problems(tmp_path: Path, recipe: Path) -> None:
    """Public problems that are added to them do not count."""
    topics = ["sums", "sums", "gcd", "sums", "gcd"]
    problems = [Problem(id=f"a{n}", prompt="?", answer="1", topic=t) for n, t in enumerate(topics)]
    write_problems(tmp_path / "a.jsonl", problems)
    for members in ("federated", "with-public"):
        [job] = Planner(recipe, tmp_path, {"members": members, "method": "fedavg"}).jobs(0)
        assert job.topics("client-1") == {"gcd": 2, "sums": 3}


def test_the_command_line_adds_axes_and_replaces_seeds(tmp_path: Path, recipe: Path) -> None:
    """--vary adds an axis to every setting, and --seeds replaces the recipe's seeds."""
    jobs = Planner(recipe, tmp_path, {}).sweep((7,), {"aggregation.clip_norm": (2, 3)})
    found = [
        (job.settings.method.name, job.settings.aggregation.clip_norm, job.settings.seed)
        for job in jobs
        if job.members == "federated"
    ]
    assert found == [("fedavg", 2, 7), ("fedavg", 3, 7), ("pubswap", 2, 7), ("pubswap", 3, 7)]
    assert sum(job.members != "federated" for job in jobs) == 4 + 2


def test_a_key_depends_on_everything_that_decides_a_result(tmp_path: Path, recipe: Path) -> None:
    """Another seed, setting or problem changes it; the same ones give the same key."""

    def key(seed: int = 0, **given: int) -> str:
        [job] = Planner(recipe, tmp_path, dict(given)).jobs(seed)
        return job.key()

    first = key()
    assert first.startswith("small-seed-0-")
    assert key() == first
    assert len({first, key(seed=1), key(rounds=2), key(local_steps=4)}) == 4
    other = tmp_path / "other"
    other.mkdir()
    for path in tmp_path.glob("*.*"):
        (other / path.name).write_bytes(path.read_bytes())
    [job] = Planner(other / recipe.name, tmp_path, {}).jobs(0)
    assert job.key() == first
    write_problems(other / "c.jsonl", [Problem(id="z", prompt="?", answer="!")])
    assert job.key() != first


def test_members_own_settings_are_in_the_key_where_they_decide_a_result(
    tmp_path: Path, recipe: Path
) -> None:
    """Held-out problems give another key; threads and default values do not."""

    def key(text: str = "", **options: int) -> str:
        config = tmp_path / "client.toml"
        config.write_text(text)
        jobs = Planner(recipe, tmp_path, {}).jobs(0)
        [spec] = run_specs(jobs, tmp_path, config, options, keep_work=False, keep_adapters=False)
        return spec.key

    [job] = Planner(recipe, tmp_path, {}).jobs(0)
    assert {job.key(), key(), key("holdout = 0"), key("threads = 2"), key(threads=1)} == {key()}
    others = (
        "holdout = 2",
        "holdout = 3",
        "prompts_per_step = 1",
        "rank = 4",
        "dtype = 'bfloat16'",
    )
    assert len({key(), *(key(text) for text in others)}) == 1 + len(others)


def test_simulate_takes_the_members_precision(tmp_path: Path, recipe: Path) -> None:
    """A wrong one is refused with its key, before the run starts."""
    command = ["simulate", str(recipe), "--out", str(tmp_path / "store"), "--dtype", "float16"]
    done = CliRunner().invoke(build_app(), command)
    assert isinstance(done.exception, InvalidSettings)
    assert "dtype: Input should be 'auto', 'float32' or 'bfloat16'" in str(done.exception)


def test_a_key_does_not_depend_on_the_order_of_values(tmp_path: Path, recipe: Path) -> None:
    """The order of `--set` options creates no second folder for the same run."""
    given: dict[str, Value] = {"method": "fedprox", "grpo.learning_rate": 1e-3, "method.mu": 0.1}
    keys = {
        Planner(recipe, tmp_path, dict(order)).jobs(0)[0].key()
        for order in permutations(given.items())
    }
    assert len(keys) == 1


STUDY = shipped_folder() / "small" / "study" / "runs"


@pytest.mark.parametrize("folder", sorted(STUDY.iterdir())[::10], ids=lambda folder: folder.name)
def test_results_of_the_study_are_still_found(tmp_path: Path, folder: Path) -> None:
    """Their settings, in any order, give the names of their folders, so nothing is run again."""
    result = read_result(folder)
    given = dict(reversed(result.setting.items()))
    jobs = Planner(f"small/{result.recipe}", tmp_path, given).jobs(result.seed)
    specs = run_specs(jobs, tmp_path, None, {}, keep_work=False, keep_adapters=False)
    assert folder.name in {spec.key for spec in specs}  # one for each single client


def test_clients_that_make_fewer_steps_are_refused(tmp_path: Path, recipe: Path) -> None:
    """Their rewards would be assigned to wrong rounds, and the run's table would fail with a
    traceback.
    """
    config = tmp_path / "client.toml"
    config.write_text("round_steps = 2")
    jobs = Planner(recipe, tmp_path, {}).jobs(0)
    with pytest.raises(InvalidSettings, match="set the run's local_steps"):
        run_specs(jobs, tmp_path, config, {}, keep_work=False, keep_adapters=False)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"clients": 4}, "data.private"),
        ({"data.private": []}, "a simulation needs one for each"),
        ({"swap.perod": 2}, "method.period"),
        ({"members": "everyone"}, "members"),
    ],
)
def test_what_cannot_be_simulated_is_refused_with_the_key(
    tmp_path: Path, recipe: Path, given: dict[str, Any], said: str
) -> None:
    """Before anything runs."""
    with pytest.raises(InvalidSettings, match=said):
        Planner(recipe, tmp_path, dict(given)).jobs(None)


def test_pooled_files_that_share_an_id_are_refused(tmp_path: Path, recipe: Path) -> None:
    """Two problems with one id would be counted as one."""
    (tmp_path / "b.jsonl").write_bytes((tmp_path / "a.jsonl").read_bytes())
    [job] = Planner(recipe, tmp_path, {"members": "pooled"}).jobs(None)
    with pytest.raises(InvalidProblems, match="'a0'"):
        job.problems("pooled")


def test_values_are_parsed_as_toml() -> None:
    """But strings need no quotation marks."""
    assert parse_values(["a.b=2", "c=0.5", "d=true", "e=keep", "f= x=y "]) == {
        "a.b": 2,
        "c": 0.5,
        "d": True,
        "e": "keep",
        "f": "x=y",
    }
    assert parse_axes(["method.period=2,4", "method=fedavg,pubswap"]) == {
        "method.period": (2, 4),
        "method": ("fedavg", "pubswap"),
    }
    assert parse_seeds("0-2,7") == (0, 1, 2, 7)
    assert parse_seeds(None) == ()


@pytest.mark.parametrize("text", ["key", "=1", "key="])
def test_a_value_without_its_key_is_refused(text: str) -> None:
    """The message gives the expected form."""
    with pytest.raises(PubSwapError, match="KEY=VALUE"):
        parse_values([text])


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "1,,2", "4-0"])
def test_invalid_seeds_are_refused(text: str) -> None:
    """The message shows both valid forms."""
    with pytest.raises(InvalidSettings, match="0-4"):
        parse_seeds(text)


def test_a_title_leaves_out_what_all_runs_share_and_nothing_else(
    tmp_path: Path, recipe: Path
) -> None:
    """An axis that only some runs name distinguishes them, even with a single value."""
    planner = Planner(recipe, tmp_path, {"rounds": 2})
    jobs = [
        planner.jobs(0)[0],
        *Planner(recipe, tmp_path, {"rounds": 2, "method.period": 3}).jobs(0),
    ]
    specs = run_specs(jobs, tmp_path, None, {}, keep_work=False, keep_adapters=False)
    assert [spec.title for spec in specs] == ["seed=0", "method.period=3 seed=0"]

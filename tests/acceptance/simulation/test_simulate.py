"""`pubswap simulate` against a federation of real processes, and against SIGKILL."""

from pathlib import Path

import pytest

from pubswap import Federation
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import InvalidSettings, LocalFault
from pubswap_protocol.problems import write_problems
from pubswap_simulation.results import Result
from support.client.simulations import (
    CLIENTS,
    adapter_of,
    command,
    options_of,
    simulated,
    write_recipe,
)
from support.coordinator.processes import federated_adapter, sums
from support.eventually import until
from support.forked import Forked

pytestmark = pytest.mark.usefixtures("unmeasured")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recipe(tmp_path_factory.mktemp("recipe"))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, recipe: Path) -> tuple[Result, bytes]:
    """A simulated run with keep, and its adapter."""
    store = tmp_path_factory.mktemp("undisturbed")
    [result], _ = simulated(recipe, store, "--keep-adapters")
    return result, adapter_of(store)


@pytest.mark.full
def test_a_simulation_ends_with_the_bits_of_separate_daemons(
    tmp_path: Path, undisturbed: tuple[Result, bytes]
) -> None:
    """Two rounds with keep give the same adapter, exchanges and traffic in one process or three."""
    result, simulated_adapter = undisturbed
    view, adapter = federated_adapter(tmp_path / "daemons", {"local_steps": 4}, order=CLIENTS)
    assert simulated_adapter == adapter
    assert result.run.rounds[-1].adapter == digest_of(adapter)
    for ours, theirs in zip(result.run.rounds, view.rounds, strict=True):
        assert (ours.adapter, ours.drift, ours.public_steps) == (
            theirs.adapter,
            theirs.drift,
            theirs.public_steps,
        )
    assert (
        sum(public_step.replaced for summary in view.rounds for public_step in summary.public_steps)
        > 0
    )
    assert [summary.traffic.up for summary in result.run.rounds] == [
        summary.traffic.up for summary in view.rounds
    ]


@pytest.mark.long
@pytest.mark.full
def test_other_methods_and_rules_have_the_bits_of_separate_daemons_too(
    tmp_path: Path, recipe: Path
) -> None:
    """With clients that never wait for each other, and new factors after each round."""
    overrides = {"method": "fedavg", "aggregation.rule": "svd", "local_steps": 2}
    _, adapter = federated_adapter(tmp_path / "daemons", overrides, order=CLIENTS)
    store = tmp_path / "store"
    simulated(recipe, store, *options_of(overrides), "--keep-adapters")
    assert adapter_of(store) == adapter


def test_a_run_that_cannot_go_on_ends_with_the_reason(tmp_path: Path, recipe: Path) -> None:
    """No operator is there to exclude an update, so it would retry forever."""
    options = options_of(
        {"aggregation.server_optimizer": "momentum", "aggregation.server_optimizer.rate": 1e9}
    )
    _, said = simulated(recipe, tmp_path / "store", *options, status=1)
    assert "Round 1 cannot go on" in said
    assert "rollback" not in said


def test_a_result_holds_every_round_and_every_step(undisturbed: tuple[Result, bytes]) -> None:
    """Evaluations of all rounds and the base, rewards of all steps, donated tokens by round."""
    result, _ = undisturbed
    assert [evaluation.problems for evaluation in result.evaluations] == [12, 12, 12]
    assert {name: len(rewards) for name, rewards in result.rewards.items()} == {
        "client-1": 8,
        "client-2": 8,
    }
    assert [donated.round for donated in result.donated] == [1, 2]
    for donated in result.donated:
        assert donated.tokens > 0
        assert 0 < donated.probability <= 1
        assert 0 <= donated.clip_share <= 1
    assert {name: sum(topics.values()) > 0 for name, topics in result.topics.items()} == {
        "client-1": True,
        "client-2": True,
    }
    assert 0 < result.best <= 1
    assert result.seconds > 0
    assert (result.recipe, result.seed, result.members) == ("acceptance", 7, "federated")
    assert result.setting == {}


@pytest.mark.full
def test_a_killed_simulation_goes_on_with_the_same_bits(
    tmp_path: Path, recipe: Path, undisturbed: tuple[Result, bytes]
) -> None:
    """SIGKILL in each round loses at most a step, and changes neither adapter nor figures."""
    wanted, adapter = undisturbed
    store = tmp_path / "store"
    options = ("--keep-adapters",)
    for steps in (3, 12):
        kill_after(steps, command(recipe, store, *options), store)
        assert steps_in(store) < 16
    [result], _ = simulated(recipe, store, *options)
    assert adapter_of(store) == adapter
    assert result.rewards == wanted.rewards
    assert [e.pass_at_1 for e in result.evaluations] == [e.pass_at_1 for e in wanted.evaluations]
    assert not list(store.glob("runs/*/work"))
    [path] = store.glob("runs/*/result.json")
    before = path.stat().st_mtime_ns
    simulated(recipe, store, *options)
    assert path.stat().st_mtime_ns == before


def test_a_long_public_prompt_ends_a_simulation_before_it_begins(tmp_path: Path) -> None:
    """With a list, and not only at the step that draws it."""
    path = write_recipe(tmp_path)
    public = sums(1, 40)
    public[30] = public[30].model_copy(update={"prompt": "1 + " * 60 + "1 ="})
    write_problems(tmp_path / "public.jsonl", public)
    store = tmp_path / "store"
    _, printed = simulated(path, store, status=1)
    assert f"line 31 ({public[30].id}: " in printed.replace("\n", " ")
    assert steps_in(store) == 0


@pytest.mark.full
def test_a_simulation_from_python_that_fails_says_why(tmp_path: Path) -> None:
    """Before starting its process, or with the process's own message; it leaves no result."""
    path, store = write_recipe(tmp_path), tmp_path / "store"
    for values, said in [
        ({"members": "alone"}, "pubswap simulate --set members=alone"),
        ({"local_step": 2}, "local_steps"),
    ]:
        with pytest.raises(InvalidSettings, match=said):
            Federation.simulate(path, store, set=values)
    with pytest.raises(InvalidSettings, match="dtype"):
        Federation.simulate(path, store, dtype="float16")
    public = sums(1, 12)
    public[3] = public[3].model_copy(update={"prompt": "1 + " * 60 + "1 ="})
    write_problems(tmp_path / "public.jsonl", public)
    with pytest.raises(LocalFault, match=r"line 4 .* Its log is .*run\.log; the same call"):
        Federation.simulate(path, store, threads=1, device="cpu")
    assert not list(store.glob("runs/*/result.json"))


def test_python_reads_what_the_command_has_simulated(
    recipe: Path, undisturbed: tuple[Result, bytes], tmp_path: Path
) -> None:
    """It is not run again, and the figures are the result's; a missing adapter is reported."""
    result, _ = undisturbed
    folder = tmp_path / "run"
    federation = Federation(folder, result)
    assert [each["pass@1"] for each in federation.metrics()] == [
        evaluation.pass_at_1 for evaluation in result.evaluations
    ]
    assert (federation.base, federation.best) == (result.base, result.best)
    rewards = federation.rewards()
    assert len(rewards) == 16
    assert rewards[8] == {"client": "client-2", "step": 1, "reward": result.rewards["client-2"][0]}
    with pytest.raises(InvalidSettings, match="was not kept"):
        federation.adapter()


def kill_after(steps: int, line: list[str], store: Path) -> None:
    """Start a command, and kill it once both clients together have made this many steps."""
    process = Forked(line, store.with_suffix(".log"))
    until(lambda: steps_in(store) >= steps)
    assert process.poll() is None, "it ended before it was killed"
    process.kill()
    process.wait()


def steps_in(store: Path) -> int:
    logs = store.glob("runs/*/work/members/*/rewards")
    return sum(len(log.read_text().splitlines()) for log in logs)

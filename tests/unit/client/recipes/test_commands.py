"""The commands `pubswap recipe list|show|check`."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pubswap_client.demo.demos import MODEL
from pubswap_client.recipes.check import KEEP_ROUNDS
from pubswap_client.recipes.inheritance import shipped_recipes
from pubswap_client.recipes.recipe import load_recipe
from pubswap_protocol.cli import build_app
from pubswap_protocol.model import model_card
from pubswap_protocol.problems import Problem, write_problems
from pubswap_protocol.settings import LoraSettings
from pubswap_server.settings import ServerSettings


def recipe(*arguments: str) -> Result:
    """Run a command in this process, on a wide terminal."""
    return CliRunner(env={"COLUMNS": "200"}).invoke(build_app(), ["recipe", *arguments])


def test_list_names_each_recipe_with_its_model_data_sizes_and_table() -> None:
    """Each takes two lines, which fit a terminal."""
    done = recipe("list")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert {line.split("  ")[0] for line in lines[:-1:2]} == set(shipped_recipes())
    place = next(n for n, line in enumerate(lines) if line.startswith("llama-3.2-3b-medical"))
    assert "table of medical reasoning" in lines[place]
    for text in ("Llama-3.2-3B-Instruct", "medical", "private 4 x 3956", "test 1977", "24 runs"):
        assert text in lines[place + 1]


def test_show_has_values_as_they_are_written() -> None:
    """Square brackets in a path are not Rich markup."""
    done = recipe("show", "tour", "--set", "model.source=models [/b] [small]")
    assert done.exit_code == 0
    assert "models [/b] [small]" in done.stdout


def test_show_tells_a_given_value_from_a_default() -> None:
    """Values from a file or the command line have no mark; the sweep is shown too."""
    done = recipe("show", "qwen3-4b-deepmath", "--set", "method.period=4")
    rows = [line.split("│")[1:4] for line in done.stdout.splitlines() if line.startswith("│")]
    shown = {key.strip(): (value.strip(), note.strip()) for key, value, note in rows}
    assert shown["grpo.prompts_per_step"] == ("4", "")
    assert shown["method.period"] == ("4", "")
    assert shown["wire.precision"] == ('"float32"', "default")
    assert shown["rounds"] == ("4", "from total_steps")
    assert shown["sweep 1: local_steps"] == ("[10, 40, 90, 120]", "")


def test_show_prints_one_file_that_extends_nothing(tmp_path: Path) -> None:
    """The output is itself an equal recipe."""
    done = recipe("show", "llama-3.2-3b-medical", "--toml", "--set", "name=ours")
    (tmp_path / "ours.toml").write_text(done.stdout)
    assert "extends" not in done.stdout
    assert load_recipe(tmp_path / "ours.toml") == load_recipe(
        "llama-3.2-3b-medical", {"name": "ours"}
    )


def test_check_says_what_a_run_takes() -> None:
    """Rounds, public steps, responses, the adapter's size from its layout, and the sweep's runs."""
    done = recipe("check", "qwen3-1.7b-math", "--set", f"model.source={MODEL}")
    assert done.exit_code == 0, done.stdout
    card = model_card(MODEL, LoraSettings(), "demo", None)
    assert f"adapter:   {card.layout.file_bytes / 1000:.1f} kB; a client sends" in done.stdout
    assert "4 rounds x 90 = 360 per client" in done.stdout
    assert "180 of them public" in done.stdout
    assert f"{360 * 8 * 8} per client" in done.stdout
    assert "24 settings, 3 seeds: 72 runs" in done.stdout
    assert "prompt:    'What is 12 + 30?' is 16 tokens: 'What is 12 + 30?'" in done.stdout


def test_check_shows_the_first_public_prompt(tmp_path: Path) -> None:
    """As the model gets it; the sets of a recipe that prepares them do not exist yet."""
    for name in ("public", "test"):
        write_problems(tmp_path / f"{name}.jsonl", [Problem(id="1", prompt=name, answer="4")])
    path = tmp_path / "mine.toml"
    path.write_text(
        f'name = "mine"\nmodel.source = "{MODEL}"\ngrpo.prompts_per_step = 1\n'
        '[data]\npublic = "public.jsonl"\ntest = "test.jsonl"\n'
    )
    done = recipe("check", str(path))
    assert "prompt:    the first public problem is 6 tokens: 'public'; ids " in done.stdout, done


def test_check_says_how_long_a_run_takes_at_a_rate_that_was_measured() -> None:
    """For 360 steps of 8 x 8 responses of up to 2,048 tokens; without a rate, it says how to
    measure one.
    """
    options = ("--set", f"model.source={MODEL}", "--set", "grpo.max_response_tokens=2048")
    hours = 360 * 8 * 8 * 2048 / 3000 / 3600
    done = recipe("check", "qwen3-1.7b-math", *options, "--tokens-per-second", "3000")
    assert f"time:      {hours:.1f} h per client at 3000 tokens/s" in done.stdout
    unmeasured = recipe("check", "qwen3-1.7b-math", *options).stdout
    assert "time:      give --tokens-per-second" in unmeasured and "doctor" in unmeasured
    for rate in ("0", "-1", "fast"):
        assert recipe("check", "qwen3-1.7b-math", "--tokens-per-second", rate).exit_code == 2


def test_check_says_what_a_sweep_takes_of_one_device(tmp_path: Path) -> None:
    """All clients of all runs in turn, with an evaluation of each round and of the base model.

    A pooled run has one client, and `alone` has one run per client; the recipe itself has 15 runs.
    """
    done = recipe("check", "h200-qwen3-1.7b-math", "--tokens-per-second", "4000")
    evaluated = 1250 * 2048 / 4000 / 3600
    run = 4 * 360 * 8 * 8 * 2048 / 4000 / 3600
    assert f"simulated: {15 * (run + 4 * evaluated):.1f} hours on one device" in done.stdout
    assert "5000 by the evaluator" in done.stdout
    path = tmp_path / "mine.toml"
    path.write_text(
        'extends = "h200-qwen3-1.7b-math"\nevaluation.samples = 2\n'
        "[sweep]\nseeds = [1, 2]\n"
        '[[sweep.grid]]\nmethod = "fedavg"\nlocal_steps = [90, 120]\n'
        '[[sweep.grid]]\nmembers = ["alone", "pooled"]\n'
    )
    done = recipe("check", str(path), "--tokens-per-second", "4000")
    federated = 2 * run + (5 + 4) * 2 * evaluated
    baselines = (1 + 1 / 4) * run + (4 + 1) * 4 * 2 * evaluated
    assert f"simulated: {2 * (federated + baselines):.1f} hours on one device" in done.stdout


def test_check_counts_the_draws_of_resampling_and_the_problems_of_a_file(tmp_path: Path) -> None:
    """Up to two further draws per private step; three evaluations of 50 problems."""
    problems = [Problem(id=str(n), prompt="1+1=", answer="2") for n in range(50)]
    for name in ("public", "test"):
        write_problems(tmp_path / f"{name}.jsonl", problems)
    path = tmp_path / "mine.toml"
    path.write_text(
        'name = "mine"\nclients = 2\nrounds = 2\nlocal_steps = 10\n'
        f'[model]\nsource = "{MODEL}"\n'
        '[data]\npublic = "public.jsonl"\ntest = "test.jsonl"\n'
        "[grpo]\nresample = 2\nmax_response_tokens = 100\n"
    )
    responses = 2 * (5 + 3 * 5) * 8 * 8
    done = recipe("check", str(path), "--tokens-per-second", "10").stdout
    assert f"{responses} per client" in done
    assert f"time:      {responses * 10 / 3600:.1f} h per client at 10 tokens/s" in done
    hours = (2 * responses + 3 * 50) * 10 / 3600
    assert f"simulated: {hours:.1f} hours on one device" in done
    assert "without evaluation" not in done


def test_check_says_that_it_does_not_know_the_size_of_a_test_set(tmp_path: Path) -> None:
    """A file is split by its length, unknown until it is read."""
    path = tmp_path / "mine.toml"
    (tmp_path / "all.jsonl").touch()
    path.write_text(
        f'name = "mine"\nclients = 2\nrounds = 1\n[model]\nsource = "{MODEL}"\n'
        '[data.prepare]\nsource = "jsonl"\nfrom = "all.jsonl"\n'
    )
    done = recipe("check", str(path), "--tokens-per-second", "10").stdout
    assert "an unknown number by the evaluator" in done
    assert "without evaluation" in done


def test_check_counts_what_travels_with_the_wire_and_the_rule() -> None:
    """bfloat16 sends half of the adapter; under FFA-LoRA only B is sent."""
    options = ["--set", f"model.source={MODEL}", "--set", "wire.precision=bfloat16"]
    sent = recipe("check", "qwen3-1.7b-math", *options, "--set", "aggregation.rule=ffa").stdout
    size = float(sent.split("a client sends ")[1].split(" kB")[0])
    card = model_card(MODEL, LoraSettings(), "demo", None)
    b = sum(out * r for name, (out, r) in card.layout.tensors.items() if "lora_B" in name)
    assert 2 * b / 1000 < size < 2.5 * b / 1000


def test_check_says_what_disks_a_run_needs() -> None:
    """The coordinator needs more for more rounds and clients, under its default retention."""
    assert ServerSettings.model_fields["keep_rounds"].default == KEEP_ROUNDS
    sizes = []
    for clients, rounds in ((4, 100), (8, 100), (4, 200)):
        options = ("--set", f"model.source={MODEL}", "--set", f"clients={clients}")
        done = recipe("check", "qwen3-1.7b-math", *options, "--set", f"rounds={rounds}")
        (line,) = (line for line in done.stdout.splitlines() if line.startswith("disk:"))
        assert f"updates of {KEEP_ROUNDS} rounds kept (PUBSWAP_KEEP_ROUNDS)" in line
        sizes.append(float(line.split()[1]) * {"kB": 1, "MB": 1e3, "GB": 1e6}[line.split()[2]])
        assert "on each member" in done.stdout
    few, many_clients, many_rounds = sizes
    assert few < many_clients
    assert few < many_rounds


def test_check_downloads_no_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If the model is not on this machine, the adapter's size is unknown."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    done = recipe("check", "qwen3-1.7b-math")
    assert done.exit_code == 0, done.stdout
    assert "size unknown: no folder Qwen/Qwen3-1.7B here; taken as a hub id" in done.stdout


def test_check_lists_all_that_is_wrong() -> None:
    """Each fault has its key; the exit status is 1."""
    wrong = ["swap.perod=2", "total_steps=350", "verifier=reasoning_gym:nope"]
    options = [text for item in [*wrong, "model.source=not//an id"] for text in ("--set", item)]
    done = recipe("check", "qwen3-1.7b-math", *options)
    assert done.exit_code == 1
    for text in (
        "wrong: swap.perod: there is no such key; did you mean method.period?",
        "wrong: total_steps: 350 is not a multiple of local_steps = 90",
        "wrong: verifier: reasoning-gym has no task 'nope'",
        "wrong: model: 'not//an id' is neither a folder nor a hub id",
        "cannot be run",
    ):
        assert text in done.stdout


def test_check_names_a_combination_of_the_sweep_that_is_impossible() -> None:
    """The recipe itself is valid, but a period of 11 is not with tau = 10."""
    done = recipe("check", "qwen3-1.7b-math", "--set", "method.period=11")
    assert done.exit_code == 1
    start = (
        "wrong: sweep: method = pubswap, method.strategy = keep, local_steps = 10: method.period"
    )
    assert start in done.stdout


def test_check_notes_runs_that_would_be_done_twice(tmp_path: Path) -> None:
    """The sweep can run, but one of its two settings is redundant."""
    path = tmp_path / "twice.toml"
    path.write_text(
        'extends = "qwen3-1.7b-math"\n[[sweep.grid]]\nmethod.period = [2]\n'
        '[[sweep.grid]]\nmethod.mode = ["synchronous"]\n'
    )
    done = recipe("check", str(path))
    assert done.exit_code == 0
    assert (
        "note:      method.mode = synchronous is the same run as method.period = 2" in done.stdout
    )


def test_all_contradictions_of_a_recipe_are_said_at_once(tmp_path: Path) -> None:
    """Even next to an unknown key, in several tables, and for rarely used values."""
    path = tmp_path / "r.toml"
    path.write_text(
        'extends = "tour"\nrunds = 2\nmethod = {quorum = 9, sampling_check = "exclude"}\n'
        'grpo = {clipping = "soft", overlap = 1}\n'
        'aggregation = {quorum = 7, weights = "examples"}\n'
    )
    answer = recipe("check", str(path))
    assert answer.exit_code == 1
    for said in (
        "runds: there is no such key; did you mean rounds?",
        "method.quorum is larger than the number of clients; use at most 2",
        "aggregation.quorum is larger than the number of clients; use at most 2",
        "grpo.clipping: removed in 0.1.0; use 'token' or 'sequence'",
        "grpo.overlap: removed in 0.1.0; method.mode = 'pipelined'",
        "method.sampling_check: 'exclude' needs two receivers",
        "aggregation.weights: 'examples' has no effect",
    ):
        assert answer.stdout.count(f"wrong: {said}") == 1, said


def test_a_narrow_terminal_cuts_no_key() -> None:
    """Several keys begin alike."""
    done = CliRunner(env={"COLUMNS": "50"}).invoke(build_app(), ["recipe", "show", "tour"])
    assert "…" not in "".join(
        line.split("│")[1] for line in done.stdout.splitlines() if "│" in line
    )

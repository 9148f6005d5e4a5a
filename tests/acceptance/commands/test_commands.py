"""The commands as people type them, and as they mistype them."""

import contextlib
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from pubswap_client.demo.demos import MODEL
from pubswap_client.demo.processes import free_port
from pubswap_client.recipes.inheritance import shipped_folder
from pubswap_protocol import __version__
from pubswap_protocol.messages import Role, RunView
from pubswap_protocol.problems import read_problems, write_problems
from support.coordinator.processes import (
    ONE_THREAD,
    Coordinator,
    create_run,
    enroll,
    serve,
    start,
    start_client,
    sums,
    wait_finished,
)
from support.eventually import until
from support.forked import Forked, ForkedProcesses, pubswap

RUN_FILE = """
name = "typed"
rounds = 2
local_steps = 4
clients = 1
chat_template = "none"
[model]
source = "{model}"
[data]
public = "public.jsonl"
test = "test.jsonl"
[grpo]
prompts_per_step = 4
"""


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    """A real coordinator for the commands of this file."""
    folder = tmp_path_factory.mktemp("commands")
    with ForkedProcesses(folder / "logs") as processes:
        running = serve(processes, folder)
        with running.api:
            yield running


def operator(coordinator: Coordinator) -> list[str]:
    """The options that point an operator's command to this coordinator."""
    token_file = coordinator.folder / "c" / "operator-token"
    return ["--coordinator", coordinator.api.url, "--token-file", str(token_file)]


def test_the_version_is_printed() -> None:
    """Bug reports ask for it first."""
    done = subprocess.run(
        [sys.executable, "-m", "pubswap_protocol", "--version"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, f"pubswap {__version__}\n")


def test_help_lists_every_command_without_importing_torch() -> None:
    """Help is quick because the heavy imports wait until a command trains."""
    code = (
        "import sys; sys.argv = ['pubswap', '--help']\n"
        "from pubswap_protocol.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'sqlalchemy', 'fastapi', 'reasoning_gym', 'sympy',"
        " 'pyarrow', 'matplotlib'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for command in ("serve", "run", "recipe", "invite", "client", "data", "evaluate", "demo"):
        assert command in done.stdout


@pytest.mark.full
def test_an_operator_runs_a_run_by_commands_alone(coordinator: Coordinator, tmp_path: Path) -> None:
    """create, invite, enroll, start, list, show, pause, resume, export and cancel all work."""
    write_problems(tmp_path / "public.jsonl", sums(1, 12))
    write_problems(tmp_path / "test.jsonl", sums(2, 12))
    (tmp_path / "run.toml").write_text(RUN_FILE.format(model=MODEL))
    options = operator(coordinator)
    line = ["run", "create", str(tmp_path / "run.toml"), "--set", "clients=2", *options]
    planned = pubswap(*line, "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert "2 rounds x 4 = 8 per client" in planned.stdout
    assert "\nclients = 2\n" in planned.stdout
    assert "typed" not in pubswap("run", "list", *options).stdout
    created = pubswap(*line)
    assert created.returncode == 0, created.stderr
    assert "Next: pubswap invite typed NAME" in created.stdout
    assert "pubswap, with 2 clients and 2 rounds of 4 steps" in created.stdout

    early = pubswap("run", "start", "typed", *options)
    assert early.returncode == 1
    assert "pubswap run resize typed N" in early.stderr and "[wrong_state]" in early.stderr
    assert "with 1 client." in pubswap("run", "resize", "typed", "1", *options).stdout

    code = pubswap("invite", "typed", "solo", "--quiet", *options).stdout.strip()
    state = tmp_path / "solo"
    join = ["--coordinator", coordinator.api.url, "--invite", code, "--state", str(state)]
    enrolled = pubswap("client", "enroll", *join).stdout
    assert "Enrolled as solo in run typed" in enrolled
    assert "Next: pubswap client doctor --data private.jsonl" in enrolled
    assert "solo in run typed" in pubswap("client", "enroll", *join).stderr
    elsewhere = [*join[:-1], str(tmp_path / "elsewhere")]
    assert "[invite_used]" in pubswap("client", "enroll", *elsewhere).stderr
    code = pubswap("member", "reissue", "typed", "solo", "--quiet", *options).stdout.strip()
    again = ["--coordinator", coordinator.api.url, "--invite", code, *elsewhere[-2:]]
    assert "Enrolled as solo in run typed" in pubswap("client", "enroll", *again).stdout

    for verb, shown in (("start", "training"), ("pause", "paused"), ("resume", "training")):
        assert shown in pubswap("run", verb, "typed", *options).stdout
    assert "typed" in pubswap("run", "list", *options).stdout
    assert "solo" in pubswap("run", "show", "typed", *options).stdout
    assert '"state": "training"' in pubswap("run", "show", "typed", "--json", *options).stdout
    [listed] = json.loads(pubswap("run", "list", "--json", *options).stdout)
    assert listed["name"] == "typed"
    members = json.loads(pubswap("member", "list", "typed", "--json", *options).stdout)
    assert [member["name"] for member in members["members"]] == ["solo"]
    told = pubswap("run", "log", "typed", "--kind", "set", "--json", *options).stdout
    assert json.loads(told)["details"] == {"clients": 1, "before": 2}
    log = pubswap("run", "log", "typed", *options).stdout.splitlines()
    assert "  created " in log[0] and "  resumed " in log[-1]
    key = str(tmp_path / "key")
    out = ["--out", str(tmp_path / "adapter"), "--which", "0", "--key", key]
    exported = pubswap("run", "export", "typed", *out, *options)
    assert "from_pretrained" in exported.stdout, exported.stderr
    check = ["export", "verify", str(tmp_path / "adapter"), "--key", f"{key}.pub"]
    assert pubswap(*check).returncode == 0
    following = ["--set", "name=following", "--initial-adapter", str(tmp_path / "adapter")]
    assert "following is open" in pubswap(*line, *following).stdout
    first, second = (coordinator.api.whole_run(name).rounds[0] for name in ("typed", "following"))
    assert first.adapter == second.adapter
    for name, label in (("typed", "│ base "), ("following", "│ start ")):
        assert label in pubswap("run", "show", name, *options).stdout
    misfit = pubswap(*line, *following, "--set", "lora.alpha=16", "--set", "name=misfit")
    assert misfit.returncode == 1 and "set lora.alpha = " in misfit.stderr
    assert (tmp_path / "adapter" / "adapter_model.safetensors").exists()
    (tmp_path / "adapter" / "adapter_model.safetensors").write_bytes(b"somebody's best")
    found = pubswap(*check)
    assert found.returncode == 1 and found.stderr == "changed: adapter_model.safetensors\n"
    refused = pubswap("run", "export", "typed", *out, *options)
    assert refused.returncode == 1 and "remove it, or name another" in refused.stderr
    kept = (tmp_path / "adapter" / "adapter_model.safetensors").read_bytes()
    assert kept == b"somebody's best"


def test_a_merged_model_is_exported_whole_signed_and_by_a_member_too(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    """An untrained adapter changes nothing, so the merged weights are the base model's."""
    run = create_run(coordinator, {"clients": 1, "name": "merging"})
    state = enroll(coordinator, run, "solo")
    key = coordinator.folder / "c" / "export-key"  # beside the token, wherever it is typed
    merged = ["--format", "merged", "--out", str(tmp_path / "merged")]
    line = ["run", "export", "merging", *merged, *operator(coordinator)]
    missing = pubswap(*line, "--model", str(tmp_path))
    assert missing.returncode == 1 and "is not a Hugging Face model folder" in missing.stderr
    assert list(tmp_path.iterdir()) == [] and not key.exists()
    exported = pubswap(*line, "--model", str(MODEL))
    assert "untrained" in exported.stdout and "final" not in exported.stdout, exported.stderr
    assert f"vllm serve {tmp_path / 'merged'}\n" in exported.stdout
    assert f"Created a new signing key, {key}, with the fingerprint SHA256:" in exported.stdout
    assert pubswap("export", "verify", merged[-1], "--key", f"{key}.pub").returncode == 0
    again = pubswap(*line, "--model", str(MODEL))
    assert again.returncode == 1 and "already exists" in again.stderr
    mine = tmp_path / "mine"
    took = ["client", "adapter", "--state", str(state), "--round", "0", "--out", str(mine)]
    assert "untrained" in pubswap(*took, "--format", "merged", "--model", str(MODEL)).stdout
    base = AutoModelForCausalLM.from_pretrained(MODEL).state_dict()
    for folder in (tmp_path / "merged", mine):
        model = AutoModelForCausalLM.from_pretrained(folder).state_dict()
        assert all(torch.equal(model[name], weight) for name, weight in base.items())


def test_a_run_with_a_long_public_prompt_is_not_created(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    """The operator gets a list; otherwise the run would fail for good at the step that draws it."""
    public = sums(1, 40)
    public[30] = public[30].model_copy(update={"prompt": "1 + " * 600 + "1 ="})
    write_problems(tmp_path / "public.jsonl", public)
    write_problems(tmp_path / "test.jsonl", sums(2, 12))
    text = RUN_FILE.format(model=MODEL).replace('"typed"', '"lengthy"')
    (tmp_path / "run.toml").write_text(text)
    line = ["run", "create", str(tmp_path / "run.toml"), *operator(coordinator)]
    created = pubswap(*line)
    assert created.returncode == 1
    assert f"line 31 ({public[30].id}: " in created.stderr
    assert "Traceback" not in created.stderr
    assert "lengthy" not in [run.name for run in coordinator.api.runs()]
    raised = pubswap(*line, "--set", "grpo.max_prompt_tokens=4000")
    assert raised.returncode == 0, raised.stderr


def test_what_is_final_is_asked_on_a_terminal_and_needs_yes_elsewhere(
    coordinator: Coordinator,
) -> None:
    """Cancelling names the run, its round and its members, and changes nothing without consent."""
    run = create_run(coordinator, {"name": "kept"})
    enroll(coordinator, run, "alone")
    cancel = ("run", "cancel", "kept", *operator(coordinator))
    refused = pubswap(*cancel)
    assert refused.returncode == 1
    for part in (run.id, "round 0 of 2", "alone", "final", "--yes"):
        assert part in refused.stderr
    revoke = pubswap("member", "revoke", "kept", "alone", *operator(coordinator))
    assert revoke.returncode == 1 and "--yes" in revoke.stderr
    status, screen = typed("n\n", *cancel)
    assert status == 1 and "alone" in screen and "Nothing was changed" in screen
    view = coordinator.api.run(run.id)
    assert view.state == "open" and view.members[0].active
    status, screen = typed("\x04", *cancel)  # the end of the input; Ctrl-C is handled the same
    assert status == 130 and "Nothing was changed" in screen
    status, screen = typed("y\n", *cancel)
    assert status == 0 and "is cancelled" in screen
    assert coordinator.api.run(run.id).state == "cancelled"


def test_yes_cancels_without_a_terminal(coordinator: Coordinator) -> None:
    """A script confirms in advance."""
    run = create_run(coordinator, {"name": "scripted"})
    done = pubswap("run", "cancel", "scripted", "--yes", *operator(coordinator))
    assert done.returncode == 0, done.stderr
    assert coordinator.api.run(run.id).state == "cancelled"


def typed(text: str, *arguments: str) -> tuple[int, str]:
    """Run a command on a terminal with this typed in; returns its status and the screen."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "pubswap_protocol", *arguments]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        os.write(ours, text.encode())
        shown = b""
        with contextlib.suppress(OSError):  # the terminal's end
            while piece := os.read(ours, 4096):
                shown += piece
        status = process.wait(60)
    os.close(ours)
    return status, shown.decode()


@pytest.mark.full
def test_a_shipped_recipe_is_a_real_federations_run(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    """`run create NAME --data DIR` makes the split in DIR, and sends no private set."""
    split = tmp_path / "split"
    changes = [
        f"model.source={MODEL}",
        "name=shipped",
        "data.prepare.source=jsonl",
        f"data.prepare.from={shipped_folder() / 'small' / 'problems.jsonl'}",
        "data.prepare.verifier=exact",
        "data.prepare.private_size=8",
        "data.prepare.public_size=8",
        "data.prepare.test_size=8",
    ]
    options = [text for change in changes for text in ("--set", change)]
    create = ["run", "create", "qwen3-1.7b-math", "--data", str(split), *options]
    created = pubswap(*create, *operator(coordinator))
    assert created.returncode == 0, created.stderr
    for number in range(1, 5):
        assert str(split / f"client-{number}.jsonl") in created.stdout
    run = coordinator.api.run("shipped")
    assert (run.settings.rounds, run.settings.grpo.learning_rate) == (4, 1e-5)
    files = [path for path in (coordinator.folder / "c").rglob("*") if path.is_file()]
    held = b"".join(path.read_bytes() for path in files)
    for name, sent in (("public", True), ("test", True), ("client-1", False)):
        problem = read_problems(split / f"{name}.jsonl")[0]
        assert (f'"{problem.id}"'.encode() in held) == sent

    missing = pubswap("run", "create", "qwen3-1.7b-mat", *operator(coordinator))
    assert missing.returncode == 1
    assert "Did you mean 'qwen3-1.7b-math'?" in missing.stderr


def test_a_port_in_use_is_said_in_one_line(coordinator: Coordinator, tmp_path: Path) -> None:
    """Serving on a taken port fails at once and names the port."""
    port = coordinator.api.url.rsplit(":", 1)[-1]
    done = pubswap("serve", "--port", port, "--data-dir", str(tmp_path))
    assert done.returncode == 1
    assert port in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_operator_token_is_refused(coordinator: Coordinator, tmp_path: Path) -> None:
    """The message does not say what would be right."""
    (tmp_path / "token").write_text("wrong")
    options = ["--coordinator", coordinator.api.url, "--token-file", str(tmp_path / "token")]
    done = pubswap("run", "list", *options)
    assert done.returncode == 1
    assert "[unauthenticated]" in done.stderr


def test_a_coordinator_that_is_not_there_is_said_with_its_address(tmp_path: Path) -> None:
    """An operator's command gives up at once and says what to check."""
    (tmp_path / "token").write_text("any")
    url = f"http://127.0.0.1:{free_port()}"
    options = ["--coordinator", url, "--token-file", str(tmp_path / "token")]
    done = pubswap("run", "list", *options)
    assert done.returncode == 1
    assert f"{url} cannot be reached" in done.stderr


def test_starting_before_enrolling_says_how_to_enrol(tmp_path: Path) -> None:
    """A daemon without a membership names the command that makes one."""
    write_problems(tmp_path / "private.jsonl", sums(5, 10))
    options = ["--state", str(tmp_path), "--data", str(tmp_path / "private.jsonl")]
    done = pubswap("client", "start", *options)
    assert done.returncode == 1
    assert "pubswap client enroll" in done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"id": "1", "prompt": "1 + 1 ="}\n', "line 1: answer"),
        ('{"id": "1", "prompt": "1 + 1 =", "answer": "2"}\n\n{}', "line 2: the line is empty"),
    ],
)
def test_unusable_private_data_is_named_by_line(tmp_path: Path, text: str, message: str) -> None:
    """A missing field or an empty line is found before any request."""
    (tmp_path / "private.jsonl").write_text(text)
    done = pubswap("client", "start", "--data", str(tmp_path / "private.jsonl"))
    assert done.returncode == 1
    assert message in done.stderr


def test_another_base_model_is_refused_by_name(coordinator: Coordinator, tmp_path: Path) -> None:
    """A member whose files differ is told which ones, before it trains."""
    run = create_run(coordinator, {"name": "other-model"})
    state = enroll(coordinator, run, "stranger")
    other = tmp_path / "model"
    shutil.copytree(MODEL, other)
    config = (other / "config.json").read_text()
    (other / "config.json").write_text(config + "\n")
    write_problems(tmp_path / "private.jsonl", sums(5, 10))
    options = ["--state", str(state), "--data", str(tmp_path / "private.jsonl")]
    done = pubswap("client", "start", *options, "--model", str(other))
    assert done.returncode == 1
    assert "differs from the run's in: config" in done.stderr


def test_a_client_s_membership_is_no_evaluator_s(coordinator: Coordinator) -> None:
    """Roles are not interchangeable."""
    run = create_run(coordinator, {"name": "roles"})
    state = enroll(coordinator, run, "trainer")
    done = pubswap("evaluate", "--state", str(state), "--model", str(MODEL))
    assert done.returncode == 1
    assert "[forbidden]" in done.stderr


def status_of(state: Path) -> Any:
    """An organisation's status as JSON."""
    done = pubswap("client", "status", "--json", "--state", str(state))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_sigterm_ends_a_waiting_daemon_cleanly_and_the_run_goes_on(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    """A daemon that is told to stop exits with 130 at once; restarted, it finishes its run.

    While it runs, no second daemon can use its state folder. Another terminal sees what it does and
    waits for, and when it was last active. In the end it reports the outcome, and has the adapter.
    """
    run = create_run(coordinator, {"name": "stopping", "rounds": 1, "clients": 1, "local_steps": 8})
    state = enroll(coordinator, run, "lone")
    evaluator = enroll(coordinator, run, "judge", Role.EVALUATOR)
    write_problems(state / "private.jsonl", sums(3, 10))
    command = ["client", "start", "--state", str(state)]
    command += ["--data", str(state / "private.jsonl"), "--model", str(MODEL), "--threads", "1"]
    daemon = Forked(command, log := tmp_path / "log")
    until(lambda: "joins run" in log.read_text())
    second = pubswap(*command)
    assert second.returncode == 1
    assert f"in use by another daemon (process {daemon.pid})" in second.stderr
    waiting = "waiting for the operator to start the run"
    until(lambda: (status_of(state)["daemon"] or {}).get("doing") == waiting)
    seen = status_of(state)
    assert (seen["process"], seen["run"]["state"]) == (str(daemon.pid), "open")
    daemon.terminate()
    assert daemon.wait(60) == 130, log.read_text()
    assert "Traceback" not in log.read_text()
    assert not (seen := status_of(state))["running"]
    assert (seen["daemon"]["doing"], seen["rewards"]) == (waiting, [])
    shown = pubswap("client", "status", "--state", str(state)).stdout
    assert "lone in stopping: open" in shown and "not running; last active" in shown
    early = pubswap("client", "adapter", "--state", str(state), "--out", str(tmp_path / "early"))
    assert early.returncode == 1 and "no final adapter" in early.stderr

    options = ["--state", str(evaluator), "--model", str(MODEL), "--threads", "1"]
    coordinator.processes.start("judge", ["evaluate", *options], ONE_THREAD)
    start(coordinator, run)
    config = tmp_path / "client.toml"
    config.write_text("holdout = 4\n")
    start_client(coordinator, state, 3, more=["--config", str(config)])
    until(lambda: 0 < len((seen := status_of(state))["rewards"]) < 8 and seen["running"])
    wait_finished(coordinator, run)
    said = coordinator.folder / "logs" / "lone.log"
    until(lambda: "peft and vLLM load" in said.read_text())
    rounds = coordinator.api.whole_run(run.id).rounds
    base, final = [one.evaluation for one in rounds if one.evaluation]
    assert (base.problems, final.problems) == (12, 12)
    assert f"pass@1 {base.pass_at_1:.3f} → {final.pass_at_1:.3f}" in said.read_text()
    page = (state / "summary.html").read_text()
    assert "<polyline" in page and "Method: pubswap." in page
    (line,) = map(json.loads, (state / "history.jsonl").read_text().splitlines())
    logged = [float(each) for each in re.findall(r" step=\d .* reward=(\S+)", said.read_text())]
    assert line["rewards"][::2] == pytest.approx(logged[::2], rel=0.01) and len(logged) == 8
    assert line["rewards"][1::2] == [None] * 4  # public steps
    seen = status_of(state)
    assert (seen["run"]["state"], seen["running"]) == ("finished", False)
    latest = {"round": 1, "pass_at_1": final.pass_at_1, "problems": 12, "warning": None}
    assert seen["run"]["latest"] == latest
    own = [(one["round"], one["adapter"], one["problems"]) for one in seen["held_out"]]
    assert own == [(each.round, each.adapter, 4) for each in rounds]
    assert "round 1, on 4 held-out problems" in (state / "summary.html").read_text()
    up = coordinator.api.run(run.id).members[-1].traffic.up
    assert up < seen["daemon"]["sent_bytes"] < up + 10_000
    _takes_its_adapter(coordinator, run, state)


def _takes_its_adapter(coordinator: Coordinator, run: RunView, state: Path) -> None:
    """Both the daemon's adapter and the command's are the run's, and peft loads them."""
    command = ["client", "adapter", "--state", str(state), "--out", str(state / "mine")]
    assert "after round 1 of 1" in pubswap(*command).stdout
    again = pubswap(*command)
    assert again.returncode == 1 and "already exists" in again.stderr
    wanted = coordinator.api.global_adapter(run.id, "final")
    for folder in ("adapter", "mine"):
        assert (state / folder / "adapter_model.safetensors").read_bytes() == wanted
    base = AutoModelForCausalLM.from_pretrained(str(MODEL), dtype=torch.float32)
    adapted = PeftModel.from_pretrained(base, str(state / "mine"))
    moved = [tensor for name, tensor in adapted.named_parameters() if "lora_B" in name]
    assert moved and all(tensor.abs().max() > 0 for tensor in moved)


@pytest.mark.full
def test_a_daemon_waits_for_a_coordinator_that_is_not_there_yet(tmp_path: Path) -> None:
    """Started first, the daemon keeps trying and joins once the coordinator answers."""
    with ForkedProcesses(tmp_path / "logs") as processes:
        first = serve(processes, tmp_path)
        with first.api:
            run = create_run(first, {"clients": 1, "rounds": 1})
            state = enroll(first, run, "early")
    port = int(first.api.url.rsplit(":", 1)[-1])
    with ForkedProcesses(tmp_path / "logs2") as processes:
        start_client(Coordinator(processes, first.api, tmp_path), state, 3)
        log = tmp_path / "logs2" / "early.log"
        until(lambda: "Trying again" in log.read_text())
        processes.check()
        late = serve(processes, tmp_path, port)
        with late.api:
            start(late, run)
            assert wait_finished(late, run).rounds[-1].updates == 1

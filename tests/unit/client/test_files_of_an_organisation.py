"""The client's files: membership, settings, run files and the PEFT export."""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]
from typer.testing import CliRunner

from pubswap_client.base_model import local_folder, model_folder, own_model
from pubswap_client.daemon.session import run_evaluator
from pubswap_client.demo.demo import prepare_folder
from pubswap_client.demo.demos import MODEL, RUN_FILE
from pubswap_client.operator.connecting import find_token_file, operator_token
from pubswap_client.recipes.recipe import load_recipe
from pubswap_client.recipes.runfile import prepare
from pubswap_client.settings import load_settings
from pubswap_client.state.membership import StoredMembership, load_membership, save_membership
from pubswap_protocol.cli import build_app
from pubswap_protocol.command_line.amounts import size_text
from pubswap_protocol.errors import BaseModelMismatch, Forbidden, InvalidProblems, InvalidSettings
from pubswap_protocol.messages import Membership, Role, RunState, RunView
from pubswap_protocol.methods.method import PubSwap
from pubswap_protocol.methods.strategies import Random
from pubswap_protocol.model import model_card
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import encode_adapter, initial_adapter, modules, stack_layout
from pubswap_protocol.tensors.peft_folder import write_peft_folder
from pubswap_server.settings import ServerSettings
from support.coordinator.coordinator import merged

MEMBERSHIP = StoredMembership(
    coordinator="http://c",
    membership=Membership(run="r1", run_name="run", name="a", role=Role.CLIENT, token="secret"),
)


def test_a_membership_is_kept_for_its_owner_only(tmp_path: Path) -> None:
    """The file with the token can be read back, and only by its owner."""
    path = save_membership(tmp_path / "state", MEMBERSHIP)
    assert load_membership(tmp_path / "state") == MEMBERSHIP
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_missing_membership_names_the_command_to_run(tmp_path: Path) -> None:
    """Starting before enrolling tells how to enrol."""
    with pytest.raises(InvalidSettings, match="pubswap client enroll"):
        load_membership(tmp_path)


def test_a_command_to_run_can_be_pasted(tmp_path: Path) -> None:
    """It quotes a folder with a space for the shell, which would take only a part of its name."""
    with pytest.raises(InvalidSettings) as told:
        load_membership(tmp_path / "our state")
    *_, option, folder = shlex.split(told.value.detail)
    assert (option, folder) == ("--state", str(tmp_path / "our state"))


def test_a_damaged_membership_is_refused(tmp_path: Path) -> None:
    """An incomplete file is an error."""
    save_membership(tmp_path, MEMBERSHIP).write_text("{")
    with pytest.raises(InvalidSettings, match="enroll again"):
        load_membership(tmp_path)


def test_a_folder_of_another_role_names_its_own_command(tmp_path: Path) -> None:
    """Before anything is sent or loaded."""
    save_membership(tmp_path, MEMBERSHIP)
    with pytest.raises(Forbidden, match=f"Use `pubswap client start --state {tmp_path}`"):
        run_evaluator(load_settings(None, state=tmp_path))


def test_client_settings_come_from_the_file_and_then_the_options(tmp_path: Path) -> None:
    """Paths are relative to the file, and options take precedence."""
    (tmp_path / "client.toml").write_text('data = "private.jsonl"\nthreads = 2\n')
    settings = load_settings(tmp_path / "client.toml", threads=1, model=None)
    assert settings.data == tmp_path / "private.jsonl"
    assert settings.threads == 1


def test_the_precision_comes_from_the_environment_then_the_file_then_the_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default is the device's."""
    assert load_settings(None).dtype == "auto"
    monkeypatch.setenv("PUBSWAP_CLIENT_DTYPE", "bfloat16")
    assert load_settings(None).dtype == "bfloat16"
    (tmp_path / "client.toml").write_text('dtype = "float32"\n')
    assert load_settings(tmp_path / "client.toml").dtype == "float32"
    assert load_settings(tmp_path / "client.toml", dtype="bfloat16").dtype == "bfloat16"


@pytest.mark.parametrize(
    "command",
    ["client start", "client doctor", "client personalize", "client privacy audit", "evaluate"],
)
def test_every_command_that_computes_takes_the_precision(command: str) -> None:
    """A wrong one is refused with those that there are, before anything is loaded."""
    line = [*command.split(), "--dtype", "float16"]
    done = CliRunner().invoke(build_app(), line, env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert "'float16' is not one of 'auto', 'float32', 'bfloat16'." in done.output


def test_a_client_file_names_folders_as_a_run_file_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`~` is expanded, and a model with a folder next to the file is that folder."""
    monkeypatch.setenv("HOME", "/home/us")
    text = 'data = "~/private.jsonl"\nstate = "here"\nmodel = "models/tiny"\n'
    (tmp_path / "client.toml").write_text(text)
    settings = load_settings(tmp_path / "client.toml")
    assert settings.data == Path("/home/us/private.jsonl")
    assert (settings.state, settings.model) == (tmp_path / "here", "models/tiny")
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    assert load_settings(tmp_path / "client.toml").model == str(tmp_path / "models" / "tiny")


def test_the_vllm_table_is_read_from_the_file_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shared folder is relative to the file; the API key can be kept out of it."""
    text = 'engine = "vllm-server"\n[vllm]\nurls = ["http://gpu:8000"]\nadapter_dir = "shared"\n'
    (tmp_path / "client.toml").write_text(text)
    monkeypatch.setenv("PUBSWAP_CLIENT_VLLM__API_KEY", "secret")
    settings = load_settings(tmp_path / "client.toml")
    assert settings.vllm.adapter_dir == tmp_path / "shared"
    assert settings.vllm.api_key is not None
    assert settings.vllm.api_key.get_secret_value() == "secret"
    assert "secret" not in repr(settings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("devise = 'cpu'", "devise: there is no such key; did you mean device?"),
        ("vllm.url = ['http://a']", r"vllm\.url: there is no such key; did you mean vllm\.urls"),
        ("engine = 'sglang'", "engine"),
        ("engine = 'vllm-server'", r"vllm\.urls and vllm\.adapter_dir"),
        ("vllm.tensor_parallel = 0", r"vllm\.tensor_parallel"),
        ("vllm = 3", "vllm"),
        ("device = 'tpu'", "device"),
        ("dtype = 'float16'", "dtype: Input should be 'auto', 'float32' or 'bfloat16'"),
        ("vllm.extra.dtype = 'half'", r"dtype does not belong in vllm\.extra; it is set by dtype"),
        ("threads = 0", "threads"),
        ("threads = 9223372036854775808", "threads: Input should be less than or equal to 4096"),
        ("verifier_seconds = 1.0", "verifier_seconds: a constant of 5 s"),
        ("vllm.kv_cache_gib = 2", r"vllm\.kv_cache_gib: .* vllm\.extra\.kv_cache_memory_bytes"),
        ("vllm.extra.gpu_memory_utilization = 2", "share of the GPU's memory"),
        ("vllm.extra.kv_cache_memory_bytes = 0.5", "kv_cache_memory_bytes is a number of bytes"),
        ("threads", "is not TOML"),
        ("threads = " + "9" * 5000, "is not TOML"),
        (".".join("a" * 100_000) + " = 1", "is not TOML"),
    ],
)
def test_a_wrong_client_setting_is_named(tmp_path: Path, text: str, message: str) -> None:
    """The message names the key, or says that the file is not TOML."""
    (tmp_path / "client.toml").write_text(text)
    with pytest.raises(InvalidSettings, match=message):
        load_settings(tmp_path / "client.toml")


@pytest.mark.parametrize("name", ["TRACK", "VLLM", "VLLM__URLS"])
def test_a_list_in_the_environment_that_is_no_json_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the setting and shows an example."""
    monkeypatch.setenv(f"PUBSWAP_CLIENT_{name}", "http://gpu:8000")
    with pytest.raises(InvalidSettings, match=f'"{name.lower()[:4]}.*as JSON, such as'):
        load_settings(None)


def test_a_missing_settings_file_is_named(tmp_path: Path) -> None:
    """The message repeats the path, so that a typo is visible."""
    with pytest.raises(InvalidSettings, match=r"nowhere.toml cannot be read"):
        load_settings(tmp_path / "nowhere.toml")


def test_the_shipped_run_file_is_valid_and_can_be_overridden() -> None:
    """Dotted keys override values of the demo's file; all others stay."""
    run = load_recipe(RUN_FILE, {"method.strategy": "random", "rounds": 3})
    assert isinstance(run.method, PubSwap)
    assert (run.method.strategy, run.rounds) == (Random(), 3)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"swap.strategi": "keep"}, "swap.strategi"),
        ({"grpo.responses_per_prompt": 7}, "must be even"),
        ({"method.period": 99}, "no step would be public"),
        ({"method": "fedsgd"}, "method"),
    ],
)
def test_a_wrong_run_file_is_refused_with_its_key(
    overrides: dict[str, object], message: str
) -> None:
    """Nothing is sent before the file is valid."""
    with pytest.raises(InvalidSettings, match=message):
        load_recipe(RUN_FILE, overrides)


def test_a_run_file_with_an_unusable_set_is_refused(tmp_path: Path) -> None:
    """The message names the faulty line."""
    (tmp_path / "public.jsonl").write_text('{"id": "1", "prompt": "1 + 1 ="}\n')
    overrides = {"model.source": str(MODEL), "data.public": str(tmp_path / "public.jsonl")}
    with pytest.raises(InvalidProblems, match=r"line 1: answer"):
        recipe = load_recipe(RUN_FILE, overrides)
        prepare(recipe, recipe.data.files(recipe.clients))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "gpt2"}, "Use another model"),
        ({"rope_scaling": {"type": "dynamic"}, "max_position_embeddings": 9}, "at most 9 together"),
    ],
)
def test_a_model_that_no_member_could_train_is_refused(
    tmp_path: Path, config: dict[str, Any], said: str
) -> None:
    """By `pubswap run create`, rather than on each member's machine."""
    folder = tmp_path / "model"
    shutil.copytree(MODEL, folder)
    changed = json.loads((folder / "config.json").read_text()) | {"rope_parameters": None} | config
    (folder / "config.json").write_text(json.dumps(changed))
    sets = {f"data.{name}": str(tmp_path / f"{name}.jsonl") for name in ("public", "test")}
    lines = "".join(f'{{"id": "{n}", "prompt": "1=", "answer": "1"}}\n' for n in range(40))
    for path in sets.values():
        Path(path).write_text(lines)
    recipe = load_recipe(RUN_FILE, {"model.source": str(folder), **sets})
    with pytest.raises(InvalidSettings, match=said):
        prepare(recipe, recipe.data.files(recipe.clients))


def test_a_model_that_is_neither_a_folder_nor_on_the_hub_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If it is not cached and the hub is offline, the message says what to do."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InvalidSettings, match="download it yourself and give its folder"):
        model_folder("no-such-organisation/no-such-model")
    with pytest.raises(InvalidSettings, match="neither a folder nor a hub id"):
        model_folder("not//an id")
    with pytest.raises(InvalidSettings, match="home folder of this user"):
        model_folder("~nobody-here/model")


def test_an_interrupted_download_is_refused_like_any_failed_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such a connection error is an httpx error and not an OSError; its first line is enough."""

    def broken(*_: object, **__: object) -> str:
        raise HTTPError("peer closed connection\nPlease check your internet connection.")

    monkeypatch.setattr("huggingface_hub.snapshot_download", broken)
    with pytest.raises(InvalidSettings, match=r"from the hub failed \(peer closed connection\)"):
        model_folder("org/small")


def test_a_model_in_the_hub_cache_is_found_by_id_and_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both together lead to the files in the hub's own cache."""
    revision = "0123456789012345678901234567890123456789"
    snapshot = tmp_path / "models--org--small" / "snapshots" / revision
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to(MODEL)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    folder = model_folder("org/small", revision)
    settings = RunSettings()
    assert (
        model_card(folder, settings.lora, "org/small", revision).weights_digest
        == model_card(MODEL, settings.lora, "model", None).weights_digest
    )


def test_a_partly_cached_model_counts_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted download is not an error of the model; the next one continues it."""
    revision = "0123456789012345678901234567890123456789"
    snapshot = tmp_path / "models--org--small" / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (snapshot / "model-00001-of-00002.safetensors").touch()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert local_folder("org/small", revision) is None


def test_an_exported_adapter_has_what_peft_needs(tmp_path: Path) -> None:
    """The folder gives base, rank, alpha and each adapted module."""
    settings = RunSettings()
    card = model_card(MODEL, settings.lora, "org/small", "main")
    adapter = encode_adapter(card.layout, initial_adapter(card.layout, 0))
    write_peft_folder(tmp_path, adapter, settings.lora, card, "org/small")
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["revision"]) == (32, 64, "main")
    assert len(config["target_modules"]) == len(card.layout.tensors) // 2
    assert (tmp_path / "adapter_model.safetensors").read_bytes() == adapter


def test_an_exported_stack_keeps_the_runs_scale_at_every_rank(tmp_path: Path) -> None:
    """Modules with a rank below the largest are listed, with alpha in proportion."""
    settings = RunSettings()
    card = model_card(MODEL, settings.lora, "org/small", "main")
    pairs = modules(card.layout)
    ranks = {a: 96 if place else 40 for place, (a, _) in enumerate(pairs)}
    layout = stack_layout(card.layout, ranks)
    stack = {name: np.zeros(shape, np.float32) for name, shape in layout.tensors.items()}
    write_peft_folder(tmp_path, encode_adapter(layout, stack), settings.lora, card, "org/small")
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    first = pairs[0][0].removeprefix("base_model.model.").removesuffix(".lora_A.weight")
    assert (config["r"], config["lora_alpha"]) == (96, 192)
    assert (config["rank_pattern"], config["alpha_pattern"]) == ({first: 40}, {first: 80})


def test_the_demo_never_deletes_what_it_did_not_write(tmp_path: Path) -> None:
    """An earlier demo's folder is replaced; any other folder that is not empty is refused."""
    prepare_folder(tmp_path / "out")
    (tmp_path / "out" / "old").touch()
    prepare_folder(tmp_path / "out")
    assert not (tmp_path / "out" / "old").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(InvalidSettings, match="choose another --out"):
        prepare_folder(tmp_path / "mine")


def test_a_missing_operator_token_says_where_it_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment takes precedence; without it, the file must exist and contain the token."""
    with pytest.raises(InvalidSettings, match="--token-file"):
        operator_token(tmp_path / "operator-token")
    (tmp_path / "operator-token").write_text("\n")
    with pytest.raises(InvalidSettings, match="it is empty"):
        operator_token(tmp_path / "operator-token")
    monkeypatch.setenv("PUBSWAP_OPERATOR_TOKEN", "secret")
    assert operator_token(tmp_path / "operator-token") == "secret"


def test_the_operator_s_commands_look_where_the_coordinator_writes_its_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same environment, as in its container, and without one."""
    monkeypatch.delenv("PUBSWAP_DATA_DIR", raising=False)
    assert find_token_file(None) == ServerSettings().token_file
    monkeypatch.setenv("PUBSWAP_DATA_DIR", str(tmp_path))
    assert find_token_file(None) == ServerSettings().token_file == tmp_path / "operator-token"
    assert find_token_file(tmp_path / "mine") == tmp_path / "mine"


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 bytes"), (999, "999 bytes"), (12_345, "12.3 kB"), (7.5e9, "7.5 GB")]
)
def test_sizes_are_readable(size: float, text: str) -> None:
    """With three digits and a unit."""
    assert size_text(size) == text


def test_a_model_with_another_vocabulary_than_its_files_is_refused() -> None:
    """Peers' token ids are checked against it and then looked up in the model."""
    settings = merged({})
    card = model_card(MODEL, settings.lora, "small", None)
    shown = card.model_copy(update={"vocabulary": card.vocabulary + 1})
    run = RunView(
        id="r",
        name="run",
        state=RunState.OPEN,
        paused=False,
        round=0,
        settings=settings,
        model=shown,
        created_at="2026-01-01T00:00:00Z",  # type: ignore[arg-type]
    )
    with pytest.raises(BaseModelMismatch, match="declares a vocabulary of"):
        own_model(load_settings(None, model=str(MODEL)), run)

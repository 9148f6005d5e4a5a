"""Every command in a faulty environment: it gives a message, an exit status and no traceback."""

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pubswap_client.demo.demos import MODEL
from pubswap_client.demo.processes import free_port
from pubswap_client.state.membership import StoredMembership, save_membership
from pubswap_protocol.messages import CreateInvite, Role
from support.chaos.small_disk import missing, small_disk
from support.client.commands import Ended, call, commands
from support.coordinator.coordinator import OPERATOR_TOKEN, Federation, begun
from support.coordinator.s3 import ACCESS, SECRET
from support.coordinator.serving import serve

needs_mounts = pytest.mark.skipif(missing() is not None, reason=str(missing()))

RUN_FILE = """
name = "{name}"
rounds = 1
local_steps = 4
[model]
source = "{model}"
{data}
[grpo]
prompts_per_step = 4
"""
PREPARED = """
[data.prepare]
source = "jsonl"
from = "public.jsonl"
clients = 4
private_size = 8
public_size = 8
test_size = 8
"""
FILES = '[data]\npublic = "public.jsonl"\ntest = "public.jsonl"\n'
READ_ONLY, FULL, DATABASE, BUCKET, COORDINATOR, NAMES = (
    *("read-only folder", "full disk", "dead database"),
    *("dead bucket", "dead coordinator", "bad names"),
)
# The message contains one of these.
CAUSES = {
    READ_ONLY: ("Read-only file system", "cannot be written to"),
    FULL: ("No space left on device", "no room", "room on the disk"),
    DATABASE: ("The database postgresql+psycopg://user:***@127.0.0.1:1/db cannot be used",),
    BUCKET: ("The blob store does not answer",),
    COORDINATOR: ("cannot be reached",),
    NAMES: ("error: ", "─ Error ─", "wrong: "),
}
DISK = (READ_ONLY, FULL)
SERVER = (DATABASE, BUCKET)

# The arguments of each command by fault; `{…}` are values of the world. A new command needs a line.
# Other faults do not affect a command; a daemon meets a full disk only at its first checkpoint,
# which has tests of its own.
ASKS = (COORDINATOR, NAMES)
CALLS: dict[str, dict[tuple[str, ...], str]] = {
    "serve": {(*DISK, *SERVER): "--port 0"},
    "admin backup": {DISK: "{new} --data-dir {data}", SERVER: "{new}"},
    "admin restore": {(*DISK, *SERVER): "{backup} --data-dir {new}"},
    "admin adopt": {(*DISK, *SERVER): "--yes --data-dir {new}"},
    "admin verify": {(FULL, *SERVER): "", (NAMES,): "--data-dir none"},
    "settings": {(NAMES,): "nobody"},
    "client enroll": {
        (*DISK, COORDINATOR): "--coordinator {url} --invite {invite} --state {new}",
        (NAMES,): "--coordinator nonsense --invite x --state {new}",
    },
    "client start": {
        (READ_ONLY,): "--state state --data {private} --model {model}",
        (NAMES,): "--state none --data none",
    },
    "client doctor": {
        (READ_ONLY, COORDINATOR): "--no-trial --state state --data {private} --model {model}"
    },
    "client policy check": {
        (COORDINATOR,): "--state state",
        (NAMES,): "--state none",
    },
    "client approve": {(NAMES,): "--state none"},
    "client deny": {(READ_ONLY,): "--state state", (NAMES,): "--state none"},
    "client audit show": {(NAMES,): "--state none"},
    "client audit verify": {(NAMES,): "none"},
    "client privacy audit": {
        (COORDINATOR,): "--state state --data {private}",
        (NAMES,): "--state none --data none",
    },
    "client status": {(NAMES,): "--state none"},
    "client link": {(COORDINATOR,): "--state state", (NAMES,): "--state none"},
    "client leave": {(READ_ONLY, COORDINATOR): "--state state", (NAMES,): "--state none"},
    "client adapter": {
        DISK: "--state {spare}/member --round 0 --out {new}",
        (COORDINATOR,): "--state state --out {new}",
        (NAMES,): "--state none --out {new}",
    },
    "client personalize": {(NAMES,): "--state none --data none"},
    "evaluate": {
        (READ_ONLY,): "--state judge --model {model}",
        (NAMES,): "--state none",
    },
    "data prepare": {
        DISK: "jsonl --from {private} --out {new}",
        (NAMES,): "nothing --out {new}",
    },
    "data convert": {DISK: "{private} --out {new}", (NAMES,): "none"},
    "data show": {(NAMES,): "none"},
    "recipe list": {},
    "recipe show": {(NAMES,): "none"},
    "recipe check": {(NAMES,): "{spare}/bad.toml"},
    "model card": {DISK: "{model} --out {new}", (NAMES,): "none"},
    "verifier test": {(NAMES,): "nothing --data {private}"},
    "run create": {
        DISK: "{spare}/good.toml --data {new}",
        (COORDINATOR,): "{spare}/files.toml",
        (NAMES,): "{spare}/bad.toml",
    },
    "run list": {(COORDINATOR,): ""},
    "run export": {DISK: "{run} --out {new}", ASKS: "{name}"},
    "export verify": {(NAMES,): "none --key none"},
    "invite": {ASKS: "a {name}"},
    "simulate": {DISK: "{spare}/good.toml --out {new}", (NAMES,): "none --out {new}"},
    "report": {(NAMES,): "none"},
    "demo": {DISK: "--out {new}"},
    "demo-federate": {(*DISK, COORDINATOR): "--out {new}"},
    **{f"run {verb}": {ASKS: "{name}"} for verb in ("show", "start", "pause", "resume")},
    **{f"run {verb}": {ASKS: "{name} --yes"} for verb in ("cancel", "archive", "delete")},
    "run log": {ASKS: "{name} --follow"},
    "run resize": {ASKS: "{name} 2"},
    "run exclude": {ASKS: "{name} a --yes"},
    "run rollback": {ASKS: "{name} --to 0 --yes"},
    "viewer add": {(COORDINATOR,): "board", (NAMES,): "{name}"},
    "viewer list": {(COORDINATOR,): ""},
    "viewer remove": {ASKS: "{name}"},
    "member list": {ASKS: "{name}"},
    **{f"member {verb}": {ASKS: "a {name}"} for verb in ("suspend", "reinstate", "reissue")},
    "member revoke": {ASKS: "a {name} --yes"},
}


@dataclass
class CommandWorld:
    """A working coordinator, and the values for the commands' arguments."""

    fed: Federation
    spare: Path
    values: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)

    def state(self, folder: Path, role: Role = Role.CLIENT) -> None:
        """A member's state folder."""
        wish = CreateInvite(name=f"{folder.parent.name}.{folder.name}", role=role)
        invite = self.fed.operator.invite(self.fed.run.id, wish).invite
        with self.fed.server.client(None) as api:
            membership = api.enroll(invite)
        stored = StoredMembership(coordinator=self.fed.server.url, membership=membership)
        save_membership(folder, stored)

    def call(self, words: str, folder: Path, env: Mapping[str, str] = {}) -> Ended:
        """Run a command after filling in the values for {…}."""
        new = "new-" + words.partition(" {")[0].partition(" -")[0].replace(" ", "-")
        arguments = [word.format(new=new, **self.values) for word in words.split()]
        return call(arguments, folder, self.env | dict(env))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandWorld]:
    spare = tmp_path_factory.mktemp("spare")
    for name, run, data in (
        ("good", "good", PREPARED),
        ("files", "good", FILES),
        ("bad", "Second Run", FILES),
    ):
        (spare / f"{name}.toml").write_text(RUN_FILE.format(name=run, model=MODEL, data=data))
    lines = (f'{{"id": "{n}", "prompt": "{n} =", "answer": "{n}"}}\n' for n in range(60))
    (spare / "public.jsonl").write_text("".join(lines))
    folder = tmp_path_factory.mktemp("world")
    with serve(folder, f"sqlite:///{folder}/data/pubswap.sqlite") as running:
        server = running.server
        made = CommandWorld(begun(server), spare)
        made.env = {
            "PUBSWAP_COORDINATOR": server.url,
            "PUBSWAP_OPERATOR_TOKEN": OPERATOR_TOKEN,
            "COLUMNS": "500",
        }
        made.values = {
            "url": server.url,
            "run": made.fed.run.id,
            "data": str(server.data_dir),
            "spare": str(spare),
            "backup": str(spare / "kept"),
            "private": str(spare / "public.jsonl"),
            "model": str(MODEL),
            "checkout": str(Path(__file__).parents[3]),
            "name": made.fed.run.name,
            "invite": made.fed.operator.invite(made.fed.run.id, CreateInvite(name="new")).invite,
        }
        made.state(spare / "member")
        backup = made.call("admin backup {backup} --data-dir {data}", spare)
        assert backup.status == 0, backup.output
        yield made


def faults(
    world: CommandWorld, situation: str, folder: Path, env: Mapping[str, str] = {}
) -> list[str]:
    """Commands that do not end with the cause and status 1, or 2 for a usage error."""
    found = []
    for command, calls in CALLS.items():
        for situations, words in calls.items():
            if situation not in situations:
                continue
            ended = world.call(f"{command} {words}", folder, env)
            said = ended.output
            status = (1, 2) if situation == NAMES else (1,)
            caused = any(cause in said for cause in CAUSES[situation])
            if ended.status not in status or "Traceback" in said or not caused:
                found.append(f"{command} {words}: status {ended.status}\n{said[-1500:]}")
    return found


def test_the_table_names_every_command() -> None:
    """So a new command cannot be forgotten here."""
    assert set(CALLS) == set(commands())


@needs_mounts
@pytest.mark.full
def test_on_a_read_only_disk(world: CommandWorld, tmp_path: Path) -> None:
    """Not even root can write there."""
    folder = tmp_path / "read-only"
    with small_disk(folder, 1 << 20):
        world.state(folder / "state")
        world.state(folder / "judge", Role.EVALUATOR)
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        assert faults(world, READ_ONLY, folder) == []


@needs_mounts
@pytest.mark.full
def test_on_a_full_disk(world: CommandWorld, tmp_path: Path) -> None:
    """Not a byte is free."""
    with small_disk(tmp_path / "full", 1 << 20) as disk:
        disk.fill()
        assert faults(world, FULL, disk.folder) == []


def test_with_a_dead_database(world: CommandWorld, tmp_path: Path) -> None:
    """PostgreSQL refuses connections."""
    url = "postgresql+psycopg://user:hidden@127.0.0.1:1/db"
    assert faults(world, DATABASE, tmp_path, {"PUBSWAP_DATABASE_URL": url}) == []


def test_with_a_dead_bucket(world: CommandWorld, tmp_path: Path) -> None:
    """The S3 server refuses connections; the database works."""
    shutil.copytree(world.values["data"], tmp_path / "pubswap-data")
    env = {
        "PUBSWAP_BLOB_URL": "s3://bucket/prefix",
        "AWS_ENDPOINT": f"http://127.0.0.1:{free_port()}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": ACCESS,
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }
    assert faults(world, BUCKET, tmp_path, env) == []


@pytest.mark.full
def test_with_a_dead_coordinator(world: CommandWorld, tmp_path: Path) -> None:
    """Nothing listens at its address, which a member knows from its membership."""
    url = f"http://127.0.0.1:{free_port()}"
    world.state(tmp_path / "lonely" / "state")
    path = tmp_path / "lonely" / "state" / "membership.json"
    path.write_text(path.read_text().replace(world.fed.server.url, url))
    path.with_name("policy.toml").write_text("limits.lora.rank.max = 64\n")
    before, world.values["url"] = world.values["url"], url
    try:
        assert faults(world, COORDINATOR, tmp_path / "lonely", {"PUBSWAP_COORDINATOR": url}) == []
    finally:
        world.values["url"] = before


def test_with_names_and_files_that_are_none(
    world: CommandWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name with a space and capitals is refused, and the message says which form is valid."""
    monkeypatch.setitem(world.values, "name", "Hospital_A")
    assert faults(world, NAMES, tmp_path) == []
    said = world.call("invite a {name}", tmp_path)
    assert said.status == 2 and "lowercase letters" in said.output and "Hospital_A" in said.output
    said = world.call("run create {spare}/bad.toml", tmp_path)
    assert said.status == 1 and "lowercase letters" in said.output and "Second Run" in said.output

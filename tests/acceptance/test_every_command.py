"""Every command where something is wrong around it: a message, an exit status, no traceback."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pubswap_client.demo.federation import MODEL
from pubswap_client.membership import StoredMembership, save_membership
from pubswap_protocol.messages import CreateInvite
from support.commands import Ended, called, commands
from support.coordinator import OPERATOR_TOKEN, Federation, begun
from support.serving import serve
from support.small_disk import missing

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
source = "reasoning-gym"
tasks = ["chain_sum"]
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
DISK = (READ_ONLY, FULL)
SERVER = (DATABASE, BUCKET)

# What each command is called with where; `{…}` are the world's. A new command needs a line here.
# What else is wrong around a command does not concern it; a daemon meets a full disk only at its
# first checkpoint, which has tests of its own.
ASKS = (COORDINATOR, NAMES)
CALLS: dict[str, dict[tuple[str, ...], str]] = {
    "serve": {(*DISK, *SERVER): "--port 0"},
    "admin backup": {DISK: "backup --data-dir {data}", SERVER: "{spare}/backup"},
    "admin restore": {DISK: "{backup} --data-dir new", SERVER: "{backup}"},
    "admin verify": {(*DISK, *SERVER): ""},
    "admin settings": {},
    "client enroll": {
        (*DISK, COORDINATOR): "--coordinator {url} --invite {invite} --state new",
        (NAMES,): "--coordinator nonsense --invite x --state {spare}/state",
    },
    "client start": {
        (READ_ONLY,): "--state state --data {private} --model {model}",
        (NAMES,): "--state none --data none",
    },
    "client doctor": {
        (READ_ONLY, COORDINATOR): "--no-trial --state state --data {private} --model {model}"
    },
    "evaluate": {(READ_ONLY,): "--state state --model {model}", (NAMES,): "--state none"},
    "data prepare": {
        DISK: "reasoning-gym --tasks chain_sum --out new",
        (NAMES,): "nothing --out {spare}/new",
    },
    "data show": {(*DISK, NAMES): "none"},
    "recipe list": {},
    "recipe show": {(NAMES,): "none"},
    "recipe check": {(NAMES,): "{spare}/bad.toml"},
    "run create": {
        DISK: "{spare}/good.toml --data new",
        (COORDINATOR,): "{spare}/files.toml",
        (NAMES,): "{spare}/bad.toml",
    },
    "run list": {(COORDINATOR,): ""},
    "run export": {DISK: "{run} --out new", ASKS: "{name}"},
    "invite": {ASKS: "a {name}"},
    "simulate": {DISK: "{spare}/good.toml --out new", (NAMES,): "none --out {spare}/new"},
    "report": {(*DISK, NAMES): "none"},
    "demo": {DISK: ""},
    "demo-federate": {(*DISK, COORDINATOR): ""},
    **{f"run {verb}": {ASKS: "{name}"} for verb in ("show", "start", "pause", "resume")},
    **{f"run {verb}": {ASKS: "{name} --yes"} for verb in ("cancel", "archive", "delete")},
    "run exclude": {ASKS: "{name} a --yes"},
    "run rollback": {ASKS: "{name} --yes"},
    "member list": {ASKS: "{name}"},
    **{f"member {verb}": {ASKS: "a {name}"} for verb in ("suspend", "reinstate", "reissue")},
    "member revoke": {ASKS: "a {name} --yes"},
    "member certificate": {ASKS: "a {name} --unbind"},
}


@dataclass
class World:
    """A coordinator that works, and what commands are called with."""

    fed: Federation
    spare: Path
    values: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)

    def state(self, folder: Path) -> None:
        """A member's state folder."""
        name = folder.parent.name.replace(" ", "-")
        invite = self.fed.operator.invite(self.fed.run.id, CreateInvite(name=name)).invite
        with self.fed.server.client(None) as api:
            membership = api.enroll(invite)
        stored = StoredMembership(coordinator=self.fed.server.url, membership=membership)
        save_membership(folder, stored)

    def call(self, words: str, folder: Path, env: Mapping[str, str] = {}) -> Ended:
        """Run a command; {…} in it are the values."""
        arguments = [word.format(**self.values) for word in words.split()]
        return called(arguments, folder, self.spare / "output", self.env | dict(env))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The coordinator is a process of its own: a fork of its threads could find a lock held."""
    spare = tmp_path_factory.mktemp("spare")
    for name, run, data in (
        ("good", "good", PREPARED),
        ("files", "good", FILES),
        ("bad", "Second Run", FILES),
    ):
        (spare / f"{name}.toml").write_text(RUN_FILE.format(name=run, model=MODEL, data=data))
    lines = (f'{{"id": "{n}", "prompt": "{n} =", "answer": "{n}"}}\n' for n in range(9))
    (spare / "public.jsonl").write_text("".join(lines))
    folder = tmp_path_factory.mktemp("world")
    with serve(folder, f"sqlite:///{folder}/data/pubswap.sqlite") as running:
        server = running.server
        made = World(begun(server), spare)
        made.env = {
            "PUBSWAP_COORDINATOR": server.url,
            "PUBSWAP_OPERATOR_TOKEN": OPERATOR_TOKEN,
            "COLUMNS": "200",
        }
        made.values = {
            "url": server.url,
            "run": made.fed.run.id,
            "data": str(server.data_dir),
            "spare": str(spare),
            "backup": str(spare / "kept"),
            "private": str(spare / "public.jsonl"),
            "model": str(MODEL),
            "name": made.fed.run.name,
            "invite": made.fed.operator.invite(made.fed.run.id, CreateInvite(name="new")).invite,
        }
        backup = made.call("admin backup {backup} --data-dir {data}", spare)
        assert backup.status == 0, backup.said
        yield made


def faults(world: World, situation: str, folder: Path, env: Mapping[str, str] = {}) -> list[str]:
    """Which commands do not end with a message and status 1, or 2 for what was mistyped."""
    found = []
    for command, calls in CALLS.items():
        for situations, words in calls.items():
            if situation not in situations:
                continue
            ended = world.call(f"{command} {words}", folder, env)
            said = ended.said.strip()
            if ended.status not in (1, 2) or "Traceback" in said or not said:
                found.append(f"{command} {words}: status {ended.status}\n{said[-1500:]}")
    return found


def test_the_table_names_every_command() -> None:
    """A new command is tried here, too."""
    assert set(CALLS) == set(commands())


def test_with_a_dead_database(world: World, tmp_path: Path) -> None:
    """PostgreSQL refuses the connection."""
    url = "postgresql+psycopg://user:hidden@127.0.0.1:1/db"
    assert faults(world, DATABASE, tmp_path, {"PUBSWAP_DATABASE_URL": url}) == []

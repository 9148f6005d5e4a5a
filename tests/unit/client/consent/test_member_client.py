"""Every request of a member's commands is recorded, and goes only to coordinators that its policy
allows.
"""

import ast
import json
import os
from pathlib import Path

import pytest

import pubswap_client
from pubswap_client.consent.ledger import entries, ledger_folder
from pubswap_client.consent.policy import policy_path
from pubswap_client.state.membership import StoredMembership, save_membership
from pubswap_protocol.messages import Membership, Role
from support.client.counting import Counting, counting
from support.forked import pubswap

COMMANDS = (
    *(("status", "--json"), ("status",), ("leave",), ("adapter", "--out", "out")),
    *(("approve", "--yes"), ("policy", "check"), ("doctor", "--no-trial")),
    *(("privacy", "audit", "--data", "private.jsonl"), ("start", "--data", "private.jsonl")),
)


def enrolled(state: Path, url: str, allowed: str) -> None:
    """Make a state folder with a membership at `url` and a policy that allows only `allowed`."""
    member = Membership(run="r", run_name="medqa", name="a", role=Role.CLIENT, token="secret-token")
    save_membership(state, StoredMembership(coordinator=url, membership=member))
    policy_path(state).write_text(f"coordinators = [{json.dumps(allowed)}]\n")


def asked(tmp_path: Path, command: tuple[str, ...], allowed: str | None = None) -> str:
    """Run a command and return its output as one line; its requests are in `Counting.came`."""
    with counting() as url:
        enrolled(tmp_path / "state", url, allowed or url)
        problem = {"id": "1", "prompt": "1 + 1 = ", "answer": "2"}
        (tmp_path / "private.jsonl").write_text(json.dumps(problem))
        wide = os.environ | {"COLUMNS": "1000"}
        done = pubswap("client", *command, "--state", "state", cwd=tmp_path, env=wide)
    return " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_coordinator_that_the_policy_no_longer_allows_is_sent_nothing(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    """Not even the token is sent; the command says why, and what to do."""
    said = asked(tmp_path, command, "https://c.example")
    assert Counting.came == []
    assert "does not allow the coordinator http://127.0.0.1" in said
    assert "Add it to `coordinators` if you trust it." in said
    assert not ledger_folder(tmp_path / "state").exists()


@pytest.mark.parametrize("command", COMMANDS[:-1], ids=" ".join)
def test_what_a_command_asks_is_in_the_ledger(tmp_path: Path, command: tuple[str, ...]) -> None:
    """Each request is recorded, even without a body."""
    asked(tmp_path, command)
    recorded = [
        (entry.method, entry.target) for entry in entries(ledger_folder(tmp_path / "state"))
    ]
    assert recorded == [(method, target) for method, target, _ in Counting.came]
    assert recorded


def test_members_create_clients_nowhere_else() -> None:
    """Only the daemon and enrolling create their own clients, which record too; all others are for
    operators.
    """
    root = Path(pubswap_client.__file__).parent
    found = {
        path.relative_to(root).as_posix(): [keyword.arg for keyword in node.keywords]
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "CoordinatorClient"
    }
    members = {path for path, keywords in found.items() if "on_send" in keywords}
    assert members == {
        "consent/member_client.py",
        "daemon/session.py",
        "organisation/enrolling.py",
    }
    assert {path.split("/")[0] for path in found.keys() - members} == {"demo", "operator"}

"""`pubswap member ...` as an operator uses it."""

from pathlib import Path

import pytest

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.coordinator.retry import ONCE
from pubswap_protocol.errors import Suspended, Unauthenticated
from pubswap_protocol.messages import CreateInvite
from support.coordinator.coordinator import good_hello
from support.coordinator.processes import create_run, serve, start
from support.eventually import until
from support.forked import ForkedProcesses, pubswap


def test_an_operator_suspends_reinstates_binds_and_revokes(tmp_path: Path) -> None:
    """Each command says what it did; the list and `run show` show the current state."""
    with ForkedProcesses(tmp_path / "logs") as processes:
        coordinator = serve(processes, tmp_path)
        with coordinator.api as api:
            token_file = tmp_path / "c" / "operator-token"
            options = ["--coordinator", api.url, "--token-file", str(token_file)]

            def printed(*arguments: str) -> str:
                done = pubswap(*arguments, *options)
                assert done.returncode == 0, done.stderr
                return " ".join(done.stdout.split())

            run = create_run(coordinator, {"clients": 1})
            token = api.enroll(api.invite(run.id, CreateInvite(name="a")).invite).token
            start(coordinator, run)
            with CoordinatorClient(api.url, token, ONCE) as member:
                member.hello(run.id, good_hello(run))
                assert "a is suspended" in printed("member", "suspend", run.name, "a")
                with pytest.raises(Suspended):
                    member.task(run.id, 0)
                assert "suspended" in printed("member", "list", run.name)
                waits = "It waits: Round 1 closes with 1 or more"
                until(lambda: waits in printed("run", "show", run.name))
                assert "takes part again" in printed("member", "reinstate", run.name, "a")
                assert member.task(run.id, 0).round == 1
                assert "is revoked" in printed("member", "revoke", run.name, "a", "--yes")
                with pytest.raises(Unauthenticated):
                    member.task(run.id, 0)
                assert "revoked" in printed("member", "list", run.name)

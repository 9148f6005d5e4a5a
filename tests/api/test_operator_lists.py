"""The operator's lists on a terminal: empty ones, and runs that wait for the operator."""

from pathlib import Path

from typer.testing import CliRunner

from pubswap_protocol import paths
from pubswap_protocol.cli import build_app
from support.coordinator.coordinator import OPERATOR_TOKEN, begun, create, serving, settings_for
from support.eventually import until


def test_an_empty_list_says_what_fills_it(tmp_path: Path) -> None:
    """For runs, members and viewers. A run that waits for its operator is listed with why."""
    with serving(settings_for(tmp_path)) as server, server.closing:
        env = {"PUBSWAP_COORDINATOR": server.url, "PUBSWAP_OPERATOR_TOKEN": OPERATOR_TOKEN}

        def said(*arguments: str) -> str:
            done = CliRunner(env=env | {"COLUMNS": "80"}).invoke(build_app(), list(arguments))
            assert done.exit_code == 0, done.output
            return done.stdout

        assert "There are no runs. Create one: pubswap run create FILE\n" in said("run", "list")
        assert "Add one: pubswap viewer add NAME\n" in said("viewer", "list")
        name = create(server).run.name
        assert f"pubswap invite {name} NAME" in said("member", "list", name)
        fed = begun(server)
        for member in "ab":
            fed.operator.decide(fed.run.id, member, paths.RUN_MEMBER_SUSPEND)
        until(lambda: fed.view().waiting_for is not None)
        assert f"{fed.run.name} waits: {fed.view().waiting_for}" in said("run", "list")

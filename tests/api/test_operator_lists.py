"""The operator's commands on a terminal: empty lists, and runs that wait for somebody."""

from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from datetime import timedelta
from io import StringIO
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pubswap_client.operator.members import print_invite
from pubswap_protocol import paths
from pubswap_protocol.cli import build_app
from pubswap_protocol.errors import NotFound
from pubswap_protocol.messages import CreateInvite, Evaluation, Invite, Role, TaskKind
from pubswap_server.clock import process_clock, wall
from support.coordinator.coordinator import (
    OPERATOR_TOKEN,
    Server,
    begun,
    create,
    serving,
    settings_for,
)
from support.eventually import until


def terminal(server: Server) -> Callable[..., str]:
    """Runs an operator's command on a terminal of 80 columns; returns its output."""
    env = {"PUBSWAP_COORDINATOR": server.url, "PUBSWAP_OPERATOR_TOKEN": OPERATOR_TOKEN}

    def said(*arguments: str) -> str:
        done = CliRunner(env=env | {"COLUMNS": "80"}).invoke(build_app(), list(arguments))
        assert done.exit_code == 0, done.output
        return done.output

    return said


def test_an_empty_list_says_what_fills_it(tmp_path: Path) -> None:
    """For runs, members and viewers. A run that waits for its operator is listed with why."""
    with serving(settings_for(tmp_path)) as server, server.closing:
        said = terminal(server)
        assert "There are no runs. Create one: pubswap run create FILE\n" in said("run", "list")
        assert "Add one: pubswap viewer add NAME\n" in said("viewer", "list")
        name = create(server).run.name
        assert f"pubswap invite {name} NAME" in said("member", "list", name)
        fed = begun(server)
        for member in "ab":
            fed.operator.decide(fed.run.id, member, paths.RUN_MEMBER_SUSPEND)
        until(lambda: fed.view().waiting_for is not None)
        assert f"{fed.run.name} waits: {fed.view().waiting_for}" in said("run", "list")


def test_an_open_run_says_which_command_is_next(server: Server) -> None:
    """An invite until all organisations have enrolled, and then the start."""
    fed = create(server, clients=1)
    fed.operator.move_run(fed.run.id, paths.RUN_OPEN)
    shown = ("run", "show", fed.run.name)
    said = terminal(server)
    assert f"pubswap invite {fed.run.name} NAME" in " ".join(said(*shown).split())
    fed.enroll("a")
    assert f"pubswap run start {fed.run.name}" in " ".join(said(*shown).split())


@pytest.fixture
def ten_minutes_pass() -> Iterator[Callable[[], None]]:
    """Advances the clock of this process's coordinators, which other tests share."""
    clock = process_clock()
    yield lambda: clock.set(clock.now() + timedelta(minutes=10))
    clock.set(wall())


def test_a_run_is_shown_with_whom_it_waits_for_and_until_when(
    server: Server, ten_minutes_pass: Callable[[], None]
) -> None:
    """For the operator only; from the first round's end on, with the time left, for members too."""
    said = terminal(server)
    fed = begun(server, aggregation={"quorum": 1, "deadline_seconds": 3600.0})
    assert fed.view().activity == (
        "Round 1 of 2: 0 of 2 organisations have handed in their updates. Waits for a, b."
    )
    assert fed.view().left_seconds is None
    fed.submit("a", 1, fed.adapter(1))
    shown = " ".join(said("run", "show", fed.run.name).split())
    assert "1 of 2 organisations have handed in their updates. Waits for b, until 2" in shown
    ten_minutes_pass()
    fed.submit("b", 1, fed.adapter(2))
    fed.wait_for(1)
    assert "About 10 min to its end" in said("run", "show", fed.run.name)
    member = fed.members["a"].run(fed.run.id)
    assert member.activity is None
    assert member.left_seconds is not None and 590 < member.left_seconds < 660
    fed.operator.move_run(fed.run.id, paths.RUN_CANCEL)
    assert "About" not in said("run", "show", fed.run.name)


def test_a_member_whose_daemon_never_came_is_not_called_active(server: Server) -> None:
    """It has enrolled, and its daemon has not said hello."""
    fed = begun(server, clients=1)
    invite = fed.operator.invite(fed.run.id, CreateInvite(name="late"))
    fed.operator.enroll(invite.invite)
    lines = terminal(server)("member", "list", fed.run.name).splitlines()
    active = {
        line.split("│")[1].strip(): line.split("│")[3].strip() for line in lines if "│" in line
    }
    assert (active["a"], active["judge"]) == ("yes", "yes")
    assert active["late"] == "not"  # and "started" on the next line
    assert "started" in active.values()


def test_a_loopback_address_is_printed_with_what_replaces_it_elsewhere(server: Server) -> None:
    """For invites and viewers; another address, and an invite's bare code, need no such line."""
    fed, said = create(server), terminal(server)
    hint = f"On another machine, replace {server.url} by the coordinator's address there.\n"
    assert hint in said("invite", fed.run.name, "a")
    assert hint not in said("invite", fed.run.name, "a", "--quiet")
    assert hint in said("viewer", "add", "board")
    reachable = Invite(invite="code", name="a", role=Role.CLIENT, expires_at=fed.run.created_at)
    with redirect_stdout(StringIO()) as printed:
        print_invite(reachable, "https://pubswap.example.org", quiet=False)
    assert printed.getvalue().endswith("--invite code\n")


def test_a_run_that_starts_without_an_evaluator_says_what_it_lacks(server: Server) -> None:
    """The hint is a command that works; with an evaluator there is none."""
    fed, said = create(server, clients=1), terminal(server)
    fed.operator.move_run(fed.run.id, paths.RUN_OPEN)
    fed.enroll("a")
    hint = f"run: pubswap invite {fed.run.name} judge --role evaluator\n"
    assert hint in said("run", "start", fed.run.name)
    fed.enroll("judge", Role.EVALUATOR)
    started = said("run", "start", fed.run.name)
    assert f"Run {fed.run.name} is training.\n" in started and hint not in started


def test_an_evaluator_that_comes_after_the_end_measures_all_rounds(server: Server) -> None:
    """The summaries of a run without one promise this."""
    fed = create(server, clients=1, rounds=1)
    fed.operator.move_run(fed.run.id, paths.RUN_OPEN)
    fed.enroll("a")
    fed.start()
    fed.submit("a", 1, fed.adapter(1))
    until(lambda: fed.view().state == "finished")
    judge = fed.enroll("judge", Role.EVALUATOR)
    for round_ in (0, 1):
        assert judge.task(fed.run.id).round == round_
        score = Evaluation(pass_at_1=0.5, by_topic={}, problems=4, seconds=1.0)
        judge.submit_evaluation(fed.run.id, round_, score)
    assert judge.task(fed.run.id).kind is TaskKind.FINISHED


def test_an_adapter_that_does_not_exist_is_refused_with_those_that_do(server: Server) -> None:
    """Such as a mistyped `best`."""
    fed = begun(server, clients=1)
    with pytest.raises(NotFound, match=r"'bst'; give final, best .* is kept, 0\."):
        fed.operator.adapter_of_round(fed.run.id, "bst")
    with pytest.raises(NotFound, match=r"'final'; the run has none yet\."):
        fed.operator.adapter_of_round(create(server).run.id, "final")

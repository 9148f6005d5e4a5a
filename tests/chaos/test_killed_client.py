"""A daemon that is killed by SIGKILL again and again, in a federation of real processes."""

import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.coordinator.processes import (
    ONE_THREAD,
    client_command,
    create_run,
    enroll,
    serve,
    start,
    start_client,
    wait_finished,
)
from support.forked import Forked, ForkedProcesses

pytestmark = pytest.mark.full

STEPS = 4
PERIOD = 2
SETTINGS = {"local_steps": STEPS, "method.period": PERIOD, "verifier": "exact"}
BEYOND = {"mode": "pipelined"}
WAITING = "1.2 exchanged waiting"

# Where alpha is killed: in two private and in two public steps of a round. After a rename the save
# is done and its other points do not come again, so that a step has one of them.
PLAN = {
    "start": ("task before", "task after"),
    "{} begin": ("blob before", "blob after"),
    "{}.1": (
        *("generate before", "generate after", "update before", "update after"),
        *("save checkpoint half", "save checkpoint renamed"),
    ),
    "{}.2": (
        *("public_step_prompts before", "generate before", "generate after", "save own before"),
        *("save own half", "save own renamed", "submit_responses before"),
        *("submit_responses after", "exchanged waiting", "save received half"),
        *("save received renamed", "update before", "save checkpoint half", "heartbeat before"),
    ),
    "{}.3": ("save checkpoint before", "save checkpoint written", "save checkpoint after"),
    "{}.4": (
        *("public_step_prompts after", "save own written", "save own after", "exchanged before"),
        *("exchanged after", "save received before", "save received written"),
        *("save received after", "update after", "save checkpoint written", "heartbeat after"),
    ),
    "{} end": ("put_blob before", "put_blob after", "submit_update before", "submit_update after"),
}


UNSAVED = ("before", "half", "written")
# A death at one of these points costs the update, or the sampling, that came before it.
LOSES_UPDATE = {"update after", *(f"save checkpoint {point}" for point in UNSAVED)}
LOSES_PRIVATE_SAMPLES = {"generate after", "update before"} | LOSES_UPDATE
LOSES_PUBLIC_SAMPLES = {"generate after", *(f"save own {point}" for point in UNSAVED)}

Live = Callable[[str | None], int]
Lives = Callable[[Live, Callable[[], None]], None]


def planned() -> list[str]:
    """The names of the points at which alpha dies, in this order: of two, one in each round.

    The wait is in round 1, where it is certain to be long: the other client is not started before.
    """
    names = [f"start {what}" for what in PLAN["start"]]
    for number in (1, 2):
        for place, points in PLAN.items():
            if place != "start":
                names += [f"{place.format(number)} {what}" for what in points[number - 1 :: 2]]
    return names


# In a pipelined run step 3 begins with sampling the public step 2, and ends before its update.
PIPELINED_PLAN = (
    *("1.3 generate after", "1.3 save own renamed", "1.3 submit_responses after"),
    *("1.3 update before", "1.3 save checkpoint half", "1.3 save checkpoint renamed"),
    *("1.2 public_step_prompts after", "1.2 exchanged after", "1.2 save received renamed"),
    *("1.2 update after", "1.2 save checkpoint renamed", "1.4 exchanged before"),
    *("2.3 save checkpoint after", "2.2 exchanged before", "2.2 save received half"),
)


def federation(
    folder: Path, lives: Lives, overrides: Mapping[str, Any] = SETTINGS
) -> tuple[list[bytes], list[str]]:
    """Run a federation whose alpha lives as `lives` says; returns all adapters and the trace.

    `lives` gets a function that runs alpha to a point or to its end, and one that starts beta.
    """
    folder.mkdir()
    trace = folder / "trace"
    with ForkedProcesses(folder / "logs") as processes:
        coordinator = serve(processes, folder)
        with coordinator.api:
            run = create_run(coordinator, overrides, "exact")
            states = {name: enroll(coordinator, run, name) for name in ("alpha", "beta")}
            command = client_command(states["alpha"], 3, "exact")
            start(coordinator, run)
            lives(
                lambda last: life(command, folder / "logs" / "alpha.log", trace, last),
                lambda: start_client(coordinator, states["beta"], 4, "exact"),
            )
            view = wait_finished(coordinator, run)
            rounds = [str(summary.round) for summary in view.rounds]
            adapters = [coordinator.api.global_adapter(run.id, which) for which in rounds]
            left = sorted(path.name for path in (states["alpha"] / "progress").iterdir())
            assert left == ["checkpoint.safetensors"]
    return adapters, trace.read_text().splitlines()


def life(command: Sequence[str], log: Path, trace: Path, last: str | None) -> int:
    """Run alpha to a point or to its end; returns its status."""
    env = os.environ | ONE_THREAD
    install = ("support.chaos.points", str(trace), last)
    return Forked(command, log, env=env, install=install).wait()


def kinds(points: Iterable[str]) -> set[str]:
    """What happens, whatever the round and the step."""
    whats = [point.split(" ", 1)[1] for point in points if not point.startswith("between")]
    return {what.removeprefix("begin ").removeprefix("end ") for what in whats}


def count(points: Iterable[str], what: set[str], steps: str = "1234") -> int:
    """How many points of some local steps are one of `what`."""
    found = [point.split(" ", 1) for point in points]
    return sum(place[2:] in tuple(steps) and name in what for place, name in found)


def undisturbed(live: Live, start_beta: Callable[[], None]) -> None:
    """A life from the start to the end."""
    start_beta()
    assert live(None) == 0


def test_a_client_killed_at_any_point_ends_in_the_same_adapter(tmp_path: Path) -> None:
    """Over forty deaths later, every round's global adapter is that of an undisturbed run.

    Nothing was done again but the work that a death interrupted, and a step around it.
    """
    plan = planned()

    def killed(live: Live, start_beta: Callable[[], None]) -> None:
        for point in plan:
            assert live(point) == -signal.SIGKILL, point
            if point == WAITING:
                start_beta()
        assert live(None) == 0

    expected, record = federation(tmp_path / "undisturbed", undisturbed)
    assert kinds(record) <= kinds(plan), "a kind of point is not planned"
    adapters, trace = federation(tmp_path / "killed", killed)

    assert adapters == expected
    assert len(set(adapters)) == 3
    assert len(plan) == len(set(plan)) >= 40
    assert set(plan) <= set(trace)
    done = 2 * STEPS
    assert count(record, {"update after"}) == count(record, {"generate after"}) == done
    lost = {
        "update after": count(plan, LOSES_UPDATE),
        "generate after": count(plan, LOSES_PRIVATE_SAMPLES, "13")
        + count(plan, LOSES_PUBLIC_SAMPLES, "24"),
    }
    for what, least in lost.items():
        again = count(trace, {what}) - done
        # The step before may not have been on the disk yet, or the next one have begun.
        assert least <= again <= least + len(plan)


def test_a_client_killed_in_pipelined_rounds_ends_in_the_same_adapter(tmp_path: Path) -> None:
    """With what is sampled, sent and chosen apart from its update, nothing is lost in between."""
    overrides = SETTINGS | {f"method.{key}": value for key, value in BEYOND.items()}

    def killed(live: Live, start_beta: Callable[[], None]) -> None:
        start_beta()
        for point in PIPELINED_PLAN:
            assert live(point) == -signal.SIGKILL, point
        assert live(None) == 0

    expected, _ = federation(tmp_path / "undisturbed", undisturbed, overrides)
    adapters, trace = federation(tmp_path / "killed", killed, overrides)
    assert adapters == expected
    assert len(set(adapters)) == 3
    assert set(PIPELINED_PLAN) <= set(trace)

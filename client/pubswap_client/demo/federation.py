"""The demo's federation on a running coordinator: the run, and a folder for each member."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.demo.demos import Demo
from pubswap_client.recipes.recipe import load_recipe
from pubswap_client.recipes.runfile import create_and_open, prepare
from pubswap_client.recipes.tables import DataFiles
from pubswap_client.state.membership import StoredMembership, save_membership
from pubswap_protocol import paths
from pubswap_protocol.messages import CreateInvite, Role
from pubswap_protocol.problems import write_problems

PRIVATE_FILE = "private.jsonl"
EVALUATOR = "evaluator"


def federate(
    api: CoordinatorClient, demo: Demo, out: Path, overrides: Mapping[str, Any]
) -> tuple[str, list[str]]:
    """Draw the data, create the run, enrol every member, and begin round 1.

    A client's folder `out/members/NAME` contains its token and its private problems, all that its
    daemon needs besides the base model. Returns the run's id and the clients' names.
    """
    recipe = load_recipe(demo.run_file, {**overrides, "model.source": str(demo.base())})
    split = demo.split(recipe.seed, recipe.clients).named()
    (out / "data").mkdir(parents=True, exist_ok=True)
    files = {name: (out / "data" / f"{name}.jsonl").resolve() for name in split}
    for name in ("public", "test"):
        write_problems(files[name], split.pop(name))
    run = create_and_open(api, prepare(recipe, DataFiles(files["public"], files["test"])))
    for name, problems in split.items():
        state = _enroll(api, run.id, name, Role.CLIENT, out)
        write_problems(state / PRIVATE_FILE, problems)
    _enroll(api, run.id, EVALUATOR, Role.EVALUATOR, out)
    api.move_run(run.id, paths.RUN_START)
    return run.id, list(split)


def _enroll(api: CoordinatorClient, run: str, name: str, role: Role, out: Path) -> Path:
    invite = api.invite(run, CreateInvite(name=name, role=role))
    with CoordinatorClient(api.url) as anonymous:
        membership = anonymous.enroll(invite.invite)
    state = out / "members" / name
    save_membership(state, StoredMembership(coordinator=api.url, membership=membership))
    return state

"""The demo's federation on a running coordinator: the run, and a folder for each member."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.demo.tasks import write_data
from pubswap_client.operator.runfile import create_and_open, prepare
from pubswap_client.recipes.recipe import load_recipe
from pubswap_client.recipes.sources import DataFiles
from pubswap_client.state.membership import StoredMembership, save_membership
from pubswap_protocol import paths
from pubswap_protocol.messages import CreateInvite, Role

RUN_FILE = Path(str(files("pubswap_client.demo") / "run.toml"))
MODEL = RUN_FILE.parent / "model"
PRIVATE_FILE = "private.jsonl"
EVALUATOR = "evaluator"


@dataclass(frozen=True)
class DemoFederation:
    """A started run, and the state folders of its members by name."""

    run: str
    clients: dict[str, Path]
    evaluator: Path


def federate(api: CoordinatorClient, out: Path, overrides: Mapping[str, Any]) -> DemoFederation:
    """Draw the data, create the run, enrol every member, and begin round 1.

    A client's folder `out/members/NAME` holds its token and its private problems, and is all
    that its daemon needs beside the base model.
    """
    recipe = load_recipe(RUN_FILE, overrides)
    members = out / "members"
    names = [f"client-{number}" for number in range(1, recipe.clients + 1)]
    data = write_data(out / "data", names, recipe.seed)
    run = create_and_open(api, prepare(recipe, DataFiles(data.public, data.test)))
    for name in names:
        _enroll(api, run.id, name, Role.CLIENT, members / name)
        shutil.move(data.private[name], members / name / PRIVATE_FILE)
    _enroll(api, run.id, EVALUATOR, Role.EVALUATOR, members / EVALUATOR)
    api.move_run(run.id, paths.RUN_START)
    return DemoFederation(run.id, {name: members / name for name in names}, members / EVALUATOR)


def _enroll(api: CoordinatorClient, run: str, name: str, role: Role, state: Path) -> None:
    invite = api.invite(run, CreateInvite(name=name, role=role))
    with CoordinatorClient(api.url) as anonymous:
        membership = anonymous.enroll(invite.invite)
    save_membership(state, StoredMembership(coordinator=api.url, membership=membership))

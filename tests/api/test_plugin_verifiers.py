"""Runs whose verifier is an installed package's: what the coordinator accepts of whom."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pubswap_protocol import paths
from pubswap_protocol.errors import Conflict, InvalidProblems, InvalidSettings
from pubswap_protocol.messages import CreateInvite, SetKind
from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers import verifier_version
from pubswap_protocol.verifiers.registry import VERIFIERS
from support.coordinator.coordinator import (
    Server,
    create,
    good_hello,
    jsonl,
    problems,
    serving,
    settings_for,
)
from support.wheels import forget, installed, project, use

VERIFIER = "plugin:complaints"
OTHERS = {"mine": "others:score", "broken": "broken:score"}
FILES = {"others.py": "def score(response, **_): return 1.0\n", "broken.py": "raise OSError(1)\n"}


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which another package is installed."""
    folder = tmp_path_factory.mktemp("others")
    return installed(project(folder / "project", "others", FILES, OTHERS), folder)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A coordinator."""
    with serving(settings_for(tmp_path_factory.mktemp("plugins"))) as server, server.closing:
        yield server


@pytest.fixture(autouse=True)
def _two_packages(
    complaints: Path, others: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Both are installed at the coordinator."""
    with monkeypatch.context() as here:
        use(here, complaints, others)
        yield
    forget()


def test_a_member_with_another_version_is_refused(server: Server) -> None:
    """The message names both; with the same digest it takes part."""
    fed = create(server, verifier=VERIFIER)
    fed.operator.move_run(fed.run.id, paths.RUN_OPEN)
    assert fed.view().verifier_version == verifier_version(VERIFIER)
    good = good_hello(fed.run)
    older = good.verifier_version.replace("1.0.0", "0.9.9")
    patched = good.verifier_version[:-1] + ("1" if good.verifier_version[-1] == "0" else "0")
    invite = fed.operator.invite(fed.run.id, CreateInvite(name="a")).invite
    member = server.client(server.client(None).enroll(invite).token)
    for version in (older, patched):
        with pytest.raises(Conflict) as refused:
            member.hello(fed.run.id, good.model_copy(update={"verifier_version": version}))
        assert version in refused.value.detail
        assert good.verifier_version in refused.value.detail
    member.hello(fed.run.id, good)


@pytest.mark.parametrize(
    ("verifier", "reason"),
    [
        ("plugin:absent", r"'absent'.*Installed: plugin:broken, plugin:complaints, plugin:mine"),
        ("plugin:broken", r"cannot be imported: OSError: 1"),
    ],
)
def test_a_run_needs_its_package_at_the_coordinator(
    server: Server, verifier: str, reason: str
) -> None:
    """One that is not installed, or cannot be imported, would score every response 0."""
    with pytest.raises(InvalidSettings, match=reason):
        create(server, verifier=verifier)


@pytest.mark.parametrize("kind", SetKind)
def test_a_set_with_a_problem_of_another_package_is_refused(server: Server, kind: SetKind) -> None:
    """Members agreed on the run's verifier only; what PubSwap brings is everybody's."""
    fed = create(server, verifier=VERIFIER)
    assert problems(1)[0].verifier is None
    for verifier in ("plugin:mine", "plugin:absent"):
        own = Problem(id="own", prompt="?", answer="1", verifier=verifier)
        with pytest.raises(InvalidProblems, match=rf"id 'own': its verifier {verifier} is not"):
            fed.operator.put_set(fed.run.id, kind, jsonl([*problems(8), own]))
    for verifier in ("exact", VERIFIER):
        own = Problem(id="own", prompt="?", answer="1", verifier=verifier)
        fed.operator.put_set(fed.run.id, kind, jsonl([*problems(8), own]))


def test_a_weighted_verifier_has_the_versions_of_all_its_packages(server: Server) -> None:
    """A set's problem may name any of them."""
    parts = [{"verifier": VERIFIER}, {"verifier": "plugin:mine"}, {"verifier": "exact"}]
    fed = create(server, verifier=VERIFIERS.read({"name": "weighted", "parts": parts}))
    version = str(fed.view().verifier_version)
    assert len(version) <= 200
    own = Problem(id="own", prompt="?", answer="1", verifier="plugin:mine")
    fed.operator.put_set(fed.run.id, SetKind.PUBLIC, jsonl([*problems(8), own]))

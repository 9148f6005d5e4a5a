"""`pubswap evaluate --adapters` scores the folders that `pubswap admin contributions` writes."""

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pubswap_client.demo.federation import MODEL
from pubswap_client.demo.tasks import demo_problems
from pubswap_client.state.membership import StoredMembership, save_membership
from pubswap_protocol import paths
from pubswap_protocol.messages import CreateInvite, FullEvaluation, Role, SetKind
from pubswap_protocol.tensors.peft_folder import WEIGHTS
from pubswap_protocol.verifiers import score
from pubswap_server.settings import ServerSettings
from support.client.commands import Ended, call
from support.coordinator.coordinator import (
    OPERATOR_TOKEN,
    Federation,
    create,
    jsonl,
    serving,
    settings_for,
)
from support.coordinator.places import admin

PROBLEMS = 24


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> ServerSettings:
    return settings_for(tmp_path_factory.mktemp("place"))


@pytest.fixture(scope="module", params=["fedit", pytest.param("fedex", marks=pytest.mark.full)])
def fed(place: ServerSettings, request: pytest.FixtureRequest) -> Iterator[Federation]:
    """A finished run on the demo's problems, with small adapters, and an evaluator's folder."""
    with serving(place) as server, server.closing:
        overrides = {"aggregation": {"rule": request.param}, "chat_template": "none"}
        fed = create(server, method="fedavg", rounds=1, **overrides)
        test = demo_problems(1, 1, 1, 1, PROBLEMS).test
        fed.operator.put_set(fed.run.id, SetKind.TEST, jsonl(test))
        fed.operator.move_run(fed.run.id, paths.RUN_OPEN)
        for name in ("a", "b"):
            fed.enroll(name)
        invite = fed.operator.invite(fed.run.id, CreateInvite(name="judge", role=Role.EVALUATOR))
        stored = StoredMembership(
            coordinator=server.url, membership=fed.operator.enroll(invite.invite)
        )
        save_membership(place.data_dir.parent / f"judge-{request.param}", stored)
        fed.start()
        for number, name in enumerate(("a", "b")):
            update = {key: 0.3 * tensor for key, tensor in fed.adapter(number).items()}
            fed.submit(name, 1, update)
        fed.wait_for(1)
        yield fed


def evaluate(fed: Federation, place: ServerSettings, *words: str) -> Ended:
    """Run the evaluator's command."""
    rule = fed.run.settings.aggregation.rule
    state = str(place.data_dir.parent / f"judge-{rule}")
    options = ["--state", state, "--model", str(MODEL), "--threads", "1", "--device", "cpu"]
    return call(["evaluate", *options, *words], place.data_dir.parent, {})


def said(ended: Ended) -> list[dict[str, Any]]:
    """The JSON in a command's output, after its log lines."""
    assert ended.status == 0, ended.output
    found: list[dict[str, Any]] = json.loads(ended.output[ended.output.index("\n[\n") :])
    return found


def test_the_folders_are_scored_as_the_evaluator_scores_the_round(
    place: ServerSettings, fed: Federation, tmp_path: Path
) -> None:
    """`all` has the round's own pass@1, a copy of it the same scores; nothing is handed in."""
    out = tmp_path / "out"
    done = admin(place, "contributions", fed.run.id, "--out", str(out))
    assert done.returncode == 0, done.stderr
    shutil.copytree(out / "round-1/all", out / "round-1/same")
    found = {
        each["adapter"]: each
        for each in said(evaluate(fed, place, "--adapters", str(out), "--json"))
    }
    assert list(found) == [f"round-1/{name}" for name in ("all", "same", "without-a", "without-b")]
    assert all(each["problems"] == PROBLEMS for each in found.values())
    assert all(each.evaluation is None for each in fed.view().rounds)
    same = found["round-1/same"]["difference"]
    assert (same["mean"], same["half_width"], same["better"], same["worse"]) == (0, 0, 0, 0)
    assert any(
        found[f"round-1/without-{name}"]["difference"]["better"]
        + found[f"round-1/without-{name}"]["difference"]["worse"]
        for name in "ab"
    )
    assert evaluate(fed, place).status == 0
    recorded = fed.view().rounds[1].evaluation
    assert recorded is not None and 0 < recorded.pass_at_1 < 1
    assert found["round-1/all"]["pass_at_1"] == recorded.pass_at_1


def test_what_the_evaluator_saw_is_shown(place: ServerSettings, fed: Federation) -> None:
    """Ten responses of each topic with the evaluator's verdicts, also as JSON and of round 0."""
    assert evaluate(fed, place).status == 0
    token = place.data_dir.parent / "token"
    token.write_text(OPERATOR_TOKEN)
    options = ["--coordinator", fed.server.url, "--token-file", str(token)]

    def show(*words: str) -> str:
        ended = call(["run", "show", fed.run.name, *words, *options], token.parent, {})
        assert ended.status == 0, ended.output
        return ended.output

    test = {problem.prompt: problem for problem in demo_problems(1, 1, 1, 1, PROBLEMS).test}
    for round_, chosen in ((1, ()), (0, ("--round", "0"))):
        found = FullEvaluation.model_validate_json(show("--responses", "--json", *chosen))
        topics = Counter(each.topic for each in found.responses)
        assert topics.keys() == found.by_topic.keys() and max(topics.values()) <= 10
        for each in found.responses:
            problem = test[each.prompt]
            assert (each.topic, each.answer) == (problem.topic, problem.answer)
            assert each.right == bool(score("exact", each.response, problem))
        text = show("--responses", *chosen)
        assert text.startswith(
            f"Round {round_}: pass@1 {found.pass_at_1:.3f} on {PROBLEMS} problems"
        )
        assert text.count("\n  gold ") == len(found.responses)
    assert "Suspicious" not in show()


def test_what_is_no_adapter_of_the_run_is_refused(
    place: ServerSettings, fed: Federation, tmp_path: Path
) -> None:
    """An empty folder, and an invalid file, by its name."""
    ended = evaluate(fed, place, "--adapters", str(tmp_path))
    assert ended.status == 1 and "[invalid_settings]" in ended.output
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / WEIGHTS).write_bytes(b"no tensors at all")
    ended = evaluate(fed, place, "--adapters", str(tmp_path))
    assert ended.status == 1 and "[invalid_adapter]" in ended.output and "bad" in ended.output

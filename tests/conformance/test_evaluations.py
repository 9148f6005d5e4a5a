"""Evaluations and their responses, on every database: bounded, for the operator alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic import ValidationError

from pubswap_client.daemon.evaluator import Evaluator, Judged
from pubswap_client.operator.responses import response_lines, show_responses
from pubswap_protocol import paths
from pubswap_protocol.bounds import MAX_SHOWN, MAX_SHOWN_TEXT
from pubswap_protocol.errors import Forbidden, NotFound
from pubswap_protocol.messages import Evaluation, FullEvaluation, JudgedResponse, Rollback
from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers.confined.worker import Scored
from pubswap_server.runs import evaluations
from support.coordinator.coordinator import Federation, Server, begun, create
from support.coordinator.places import on_sqlite

WARNING = "29 of 30 right answers repeat the question"
FIGURES: dict[str, Any] = {"pass_at_1": 0.5, "by_topic": {"say": 0.5}, "problems": 5, "seconds": 1}


def judged(text: str, right: bool = True) -> JudgedResponse:
    """A response to a problem of the test set."""
    return JudgedResponse(topic="say", prompt="Say 3.", answer="3", response=text, right=right)


def full(*texts: str, warning: str | None = None) -> FullEvaluation:
    """An evaluation with these responses."""
    return FullEvaluation(**FIGURES, warning=warning, responses=[judged(text) for text in texts])


def finish(fed: Federation, round_: int) -> None:
    """Play a round."""
    for name in fed.members.keys() - {"judge"}:
        fed.submit(name, round_, fed.adapter(round_))
    fed.wait_for(round_)


def suspicious(fed: Federation) -> list[dict[str, Any]]:
    """The details of the log's lines about suspicious answers."""
    log = fed.operator.events(fed.run.id).events
    return [event.details for event in log if event.kind == "suspicious answers"]


def test_the_operator_reads_the_responses_once_they_are_sent(server: Server) -> None:
    """As they were sent first, however often; control characters are gone, also a NUL."""
    fed = begun(server)
    with pytest.raises(NotFound, match="not evaluated"):
        fed.operator.evaluation(fed.run.id, 0)
    judge, sent = fed.members["judge"], full("<b>3</b>\n\tso 3", warning=WARNING)
    for body in (sent, sent, full("other", warning="other")):
        judge.submit_evaluation(fed.run.id, 0, body)
    assert fed.operator.evaluation(fed.run.id, 0) == sent
    assert suspicious(fed) == [{"round": 0, "warning": WARNING}]
    latest = fed.view().latest
    assert latest is not None and (latest.round, latest.warning) == (0, WARNING)
    finish(fed, 1)
    raw = full("").model_dump(mode="json")
    raw["responses"][0]["response"] = "a\x00b\x1b[31m\u202e"
    with server.http(fed.tokens["judge"]) as http:
        path = paths.EVALUATION.format(run=fed.run.id, round=1)
        assert http.post(path, json=raw).status_code == 204
    (shown,) = fed.operator.evaluation(fed.run.id, 1).responses
    assert shown.response == "a b [31m "
    latest = fed.view().latest
    assert latest is not None and (latest.round, latest.warning) == (1, None)


def test_members_see_the_figures_and_never_the_responses(server: Server) -> None:
    """Not even the evaluator, by any route that a member may ask."""
    fed = begun(server)
    canary = "canary-of-the-test-set"
    fed.members["judge"].submit_evaluation(fed.run.id, 0, full(canary, warning=WARNING))
    for name in ("a", "judge"):
        with pytest.raises(Forbidden):
            fed.members[name].evaluation(fed.run.id, 0)
        with server.http(fed.tokens[name]) as http:
            for path in (paths.RUN, paths.ROUNDS, paths.TASK):
                seen = http.get(path.format(run=fed.run.id)).text
                assert canary not in seen and "Say 3." not in seen
    assert canary not in fed.operator.events(fed.run.id).model_dump_json()
    (start, *_) = fed.members["a"].rounds(fed.run.id)
    assert start.evaluation == Evaluation(**FIGURES, warning=WARNING)


def test_responses_of_old_rounds_are_dropped(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of round 0 stay, to compare with; the figures stay, too."""
    monkeypatch.setattr(evaluations, "ROUNDS_KEPT", 2)
    fed = begun(server, method="fedavg", clients=1, rounds=4)
    for round_ in range(5):
        if round_:
            finish(fed, round_)
        fed.members["judge"].submit_evaluation(fed.run.id, round_, full(f"of {round_}"))
    kept = set()
    for round_ in range(5):
        try:
            kept.add(fed.operator.evaluation(fed.run.id, round_).responses[0].response)
        except NotFound as error:
            assert "last 2 evaluated rounds are kept" in error.detail
    assert kept == {"of 0", "of 3", "of 4"}
    assert all(summary.evaluation for summary in fed.view().rounds)


def test_a_round_that_is_repeated_is_evaluated_anew(server: Server) -> None:
    """A rollback deletes its responses, and the log keeps its figures without them."""
    fed = begun(server, method="fedavg", clients=1)
    judge = fed.members["judge"]
    judge.submit_evaluation(fed.run.id, 0, full("before"))
    finish(fed, 1)
    judge.submit_evaluation(fed.run.id, 1, full("first", warning=WARNING))
    fed.operator.roll_back(fed.run.id, Rollback(to=0))
    with pytest.raises(NotFound):
        fed.operator.evaluation(fed.run.id, 1)
    finish(fed, 1)
    judge.submit_evaluation(fed.run.id, 1, full("second"))
    assert fed.operator.evaluation(fed.run.id, 1).responses[0].response == "second"
    log = fed.operator.events(fed.run.id).events
    (back,) = [event.details for event in log if event.kind == "rolled back"]
    assert back["rounds"][0]["evaluation"] == FIGURES | {"warning": WARNING, "parts": {}}


@on_sqlite
def test_an_evaluator_of_before_sends_figures_alone(server: Server) -> None:
    """They count; asking for its responses says why there are none."""
    fed = begun(server)
    with server.http(fed.tokens["judge"]) as http:
        path = paths.EVALUATION.format(run=fed.run.id, round=0)
        assert http.post(path, json=FIGURES).status_code == 204
    assert fed.view().rounds[0].evaluation == Evaluation(**FIGURES)
    with pytest.raises(NotFound, match="earlier evaluators sent none"):
        fed.operator.evaluation(fed.run.id, 0)


@on_sqlite
def test_the_evaluator_looks_at_all_its_responses(server: Server, tmp_path: Path) -> None:
    """Not only at those that it sends, so an echo of three quarters in a topic is no suspicion."""
    fed = begun(server, method="fedavg", clients=1)
    judge, answers = fed.members["judge"], ["27 - 8"] * 30 + ["19"] * 10

    def judged_by(verifier: str) -> Callable[..., list[list[Judged]]]:
        problem = Problem(id="1", prompt="Subtract 8 from 27.", answer="19", verifier=verifier)
        return lambda *_: [
            [Judged((answer, problem), Scored(1.0, 0.0), True)] for answer in answers
        ]

    def evaluate(verifier: str) -> FullEvaluation:
        task = judge.task(fed.run.id, 0)
        Evaluator(judge, fed.run, judged_by(verifier)).evaluate(task)
        return fed.operator.evaluation(fed.run.id, task.round)

    assert evaluate("math-verify").warning is None
    finish(fed, 1)
    answers[30:] = ["19"] * 3
    found = evaluate("math-verify")
    assert found.warning is not None and found.warning.startswith("30 of 33 right answers repeat")
    assert [each.response for each in found.responses] == ["27 - 8"] * 10
    finish(fed, 2)
    assert evaluate("exact").warning is None
    assert [each["round"] for each in suspicious(fed)] == [1]


@on_sqlite
def test_the_command_prints_them_or_says_what_to_do(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line: invite an evaluator, or wait for it."""
    printed: list[str] = []
    monkeypatch.setattr(typer, "echo", printed.append)
    fed = create(server)
    show_responses(fed.operator, fed.run.name, None, as_json=False)
    assert printed == [
        f"No round of {fed.run.name} has been evaluated. Invite an evaluator: "
        f"pubswap invite {fed.run.name} judge --role evaluator"
    ]
    fed = begun(server)
    show_responses(fed.operator, fed.run.name, None, as_json=True)
    assert "Wait for its evaluator's first result." in printed[-1]
    fed.members["judge"].submit_evaluation(fed.run.id, 0, full("so\n3", warning=WARNING))
    printed.clear()
    show_responses(fed.operator, fed.run.name, None, as_json=False)
    assert "\n".join(printed) == (
        "Round 0: pass@1 0.500 on 5 problems\n"
        f"Suspicious: {WARNING}\n\n"
        "say: right\n"
        "  question  Say 3.\n"
        "  gold      3\n"
        "  response  so\n"
        "            3"
    )
    show_responses(fed.operator, fed.run.name, 0, as_json=True)
    assert FullEvaluation.model_validate_json(printed[-1]).warning == WARNING


def test_nothing_that_is_printed_moves_a_terminal_s_cursor() -> None:
    """Topics, texts and the warning are foreign; topics that did not fit are counted."""
    evil = "a\x1b[2J\x07\u202e\rb"
    body = full(evil, warning=evil)
    response = body.responses[0].model_copy(update={"topic": f"{evil}\nc"})
    topics = {"say": 0.5, "more": 0.5, "last": 0.5}
    body = body.model_copy(update={"responses": [response], "by_topic": topics})
    printed = "\n".join(response_lines(0, body))
    assert not [char for char in printed if not (char.isprintable() or char == "\n")]
    assert printed.endswith("\n2 more topics are not shown.")


@on_sqlite
@pytest.mark.parametrize(
    "change",
    [
        {"responses": [judged("").model_dump()] * (MAX_SHOWN + 1)},
        {"responses": [judged("").model_dump() | {"response": "x" * (MAX_SHOWN_TEXT + 1)}]},
        {"responses": [judged("").model_dump() | {"right": 1}]},
        {"responses": [judged("").model_dump() | {"topic": "a\x00b"}]},
        {"responses": [judged("").model_dump() | {"member": "a"}]},
        {"warning": "x" * 201},
    ],
)
def test_what_is_longer_or_other_than_agreed_is_refused(
    server: Server, change: dict[str, Any]
) -> None:
    """Each field is bounded, and nothing is stored."""
    fed = begun(server)
    with pytest.raises(ValidationError):
        FullEvaluation(**FIGURES | change)
    with server.http(fed.tokens["judge"]) as http:
        path = paths.EVALUATION.format(run=fed.run.id, round=0)
        reply = http.post(path, json=FIGURES | change)
        assert (reply.status_code, reply.json()["code"]) == (422, "invalid")
    assert fed.view().rounds[0].evaluation is None

"""`pubswap run show --responses`: what the policy answers to problems of the test set."""

from collections.abc import Iterator
from textwrap import indent
from typing import TYPE_CHECKING

import typer

from pubswap_protocol.bounds import escaped, plain
from pubswap_protocol.messages import FullEvaluation, Role

if TYPE_CHECKING:
    from pubswap_client.coordinator.client import CoordinatorClient

_INDENT = " " * 12


def show_responses(api: "CoordinatorClient", run: str, round_: int | None, as_json: bool) -> None:
    """Print the responses of a round, or of the last evaluated one."""
    view = api.run(run)
    if round_ is None and view.latest is None:
        what = "Wait for its evaluator's first result."
        if all(member.role is not Role.EVALUATOR for member in view.members):
            what = f"Invite an evaluator: pubswap invite {view.name} judge --role evaluator"
        typer.echo(f"No round of {view.name} has been evaluated. {what}")
        return
    if round_ is None:
        assert view.latest is not None
        round_ = view.latest.round
    evaluation = api.evaluation(view.id, round_)
    if as_json:
        typer.echo(escaped(evaluation.model_dump_json(indent=2)))
        return
    for line in response_lines(round_, evaluation):
        typer.echo(line)


def response_lines(round_: int, evaluation: FullEvaluation) -> Iterator[str]:
    """An evaluation's responses for people, topic by topic."""
    yield f"Round {round_}: pass@1 {evaluation.figures} on {evaluation.problems} problems"
    if evaluation.warning is not None:
        yield f"Suspicious: {evaluation.warning}"
    for each in evaluation.responses:
        score = "" if each.score is None else f", score {each.score:.3f}"
        yield f"\n{plain(each.topic)}: {'right' if each.right else 'wrong'}{score}"
        yield _field("question", each.prompt)
        yield _field("gold", each.answer)
        yield _field("response", each.response)
    topics = {each.topic for each in evaluation.responses}
    if missing := len(evaluation.by_topic) - len(topics):
        yield f"\n{missing} more topics are not shown."


def _field(name: str, text: str) -> str:
    """A named text, whose further lines are indented."""
    return f"  {name:10}{indent(text, _INDENT).removeprefix(_INDENT)}"

"""The operator's actions on the dashboard, each with its consequence for the confirmation page."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pydantic import ValidationError
from sqlalchemy.orm import Session

from pubswap_protocol.errors import Invalid, NotFound, fault_text
from pubswap_protocol.messages import CreateInvite, Role, RunState
from pubswap_server.database.tables import RunRow
from pubswap_server.runs import members, rounds, runs
from pubswap_server.runs.state import ENDED, ROUND_UNDER_WAY, paused

Form = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Action:
    """`consequence` is shown before the action, with {member} and {round} filled in."""

    label: str
    consequence: str
    work: Callable[[Session, RunRow, Form], None]


ACTIONS: dict[str, Action] = {
    "start": Action(
        "Start",
        "Round 1 begins: the organisations that have enrolled get work. Others may join later.",
        lambda session, run, form: runs.start(session, run),
    ),
    "pause": Action(
        "Pause",
        "Members finish the step they are at, then hold their responses and updates: they send "
        "nothing until you resume the run. Deadlines stand still; nothing is lost or late. "
        "Evaluators go on.",
        lambda session, run, form: runs.move(session, run, paused),
    ),
    "resume": Action(
        "Resume",
        "Members send what they have held, and work is given out again. Deadlines count anew.",
        lambda session, run, form: rounds.resume(session, run),
    ),
    "cancel": Action(
        "Cancel for good",
        "The run ends for all organisations, and cannot be started again. The adapters of finished "
        "rounds are kept; the round under way is lost.",
        lambda session, run, form: runs.cancel(session, run),
    ),
    "suspend": Action(
        "Suspend",
        "{member} is refused from now on, and nobody waits for it. What it handed in still counts. "
        "You can reinstate it at any time.",
        lambda session, run, form: members.suspend(session, run, form.get("member", "")),
    ),
    "reinstate": Action(
        "Reinstate",
        "{member} takes part again, from the round under way on.",
        lambda session, run, form: members.suspend(session, run, form.get("member", ""), False),
    ),
    "exclude": Action(
        "Exclude the update",
        "The update of {member} is left out of round {round}, as if it had come too late. "
        "Below its quorum, the round waits.",
        lambda session, run, form: rounds.exclude(
            session, run, _shown_round(form), form.get("member", "")
        ),
    ),
}


def _shown_round(form: Form) -> int:
    """The round that the page showed; another may be under way by now."""
    shown = form.get("round", "")
    return int(shown) if shown.isdecimal() and len(shown) < 10 else -1


def action_named(name: str) -> Action:
    """The action with this name; raises NotFound."""
    if name not in ACTIONS:
        raise NotFound(f"There is no action {name!r}.")
    return ACTIONS[name]


def possible(run: RunRow) -> list[str]:
    state = RunState(run.state)
    if state in ENDED:
        return []
    acts = ["start"] if state is RunState.OPEN else []
    if state in ROUND_UNDER_WAY or state is RunState.AGGREGATING:
        acts.append("resume" if run.paused else "pause")
    return [*acts, "cancel"]


def invited(session: Session, run: RunRow, form: Form) -> str:
    """A new invite's code, which is shown once."""
    try:
        request = CreateInvite.model_validate(
            {"name": form.get("member", ""), "role": form.get("role", Role.CLIENT)}, strict=False
        )
    except ValidationError as error:
        raise Invalid(fault_text(error.errors()[0])) from None
    return members.invite(session, run, request).invite

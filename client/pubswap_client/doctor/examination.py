"""`pubswap client doctor`: all checks in order.

Changes nothing but the ledger: it asks the coordinator only for its version, the run and its public
problems, takes no lock, and keeps the trial step's adapter in memory.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import Progress

from pubswap_client.consent.policy import allows_unconfined
from pubswap_client.distributed.launch import launched_rank, run_follower
from pubswap_client.doctor import coordinator, memory, model, private_data, state_folder
from pubswap_client.doctor.facts import Facts
from pubswap_client.doctor.findings import Checklist, Finding, of_error
from pubswap_client.doctor.trial import try_model
from pubswap_client.run_card import read_card
from pubswap_client.settings import ClientSettings
from pubswap_protocol.bounds import escaped
from pubswap_protocol.command_line.progress_bar import progress_bar
from pubswap_protocol.messages import Role, RunView
from pubswap_protocol.verifiers import VerifierPool


class Check(NamedTuple):
    """A check returns what it found, which may be that it needs an earlier check to succeed.

    None means that there is nothing to check. It notes in the facts what later checks need.
    """

    name: str
    check: Callable[[Facts], Finding | None]
    roles: tuple[Role, ...] = (Role.CLIENT, Role.EVALUATOR)


_CLIENT = (Role.CLIENT,)  # an evaluator has no policy, no checkpoint, and no problems of its own
CHECKS = (
    Check("state folder", state_folder.check_folder),
    Check("daemon", state_folder.check_daemon),
    Check("membership", state_folder.check_membership),
    Check("coordinator", coordinator.check_coordinator),
    Check("token and run", coordinator.check_run),
    Check("policy", state_folder.check_policy, _CLIENT),
    Check("disk", state_folder.check_disk, _CLIENT),
    Check("settings", coordinator.check_settings),
    Check("model files", model.check_model),
    Check("chat template", model.check_template),
    Check("end of sequence", model.check_end),
    Check("public prompts", coordinator.check_public_prompts, _CLIENT),
    Check("test prompts", coordinator.check_test_prompts, (Role.EVALUATOR,)),
    Check("private data", private_data.check_file, _CLIENT),
    Check("number of problems", private_data.check_count, _CLIENT),
    Check("prompt lengths", private_data.check_prompt_lengths, _CLIENT),
    Check("round trip", model.check_round_trip, _CLIENT),
    Check("sandbox", private_data.check_sandbox, _CLIENT),
    Check("verifiers", private_data.check_verifiers, _CLIENT),
    Check("texts of answers", private_data.check_texts, _CLIENT),
    Check("answer lengths", private_data.check_answer_lengths, _CLIENT),
    Check("answers", private_data.check_answers, _CLIENT),
    Check("unusable answers", private_data.check_listed, _CLIENT),
    Check("device", memory.check_device),
    Check("memory", memory.check_memory),
    Check("rollout engine", memory.check_engine),
)


def examine(
    settings: ClientSettings,
    progress: Progress,
    *,
    trial: bool = True,
    role: Role = Role.CLIENT,
    carded: RunView | None = None,
) -> Checklist:
    """Perform all checks once; an error fails its own check, and the others go on.

    Without `trial`, and for an evaluator, there is no trial step. With `carded`, a run known from
    its run card, there is no membership and no coordinator.
    """
    client = role is Role.CLIENT
    unconfined = client and allows_unconfined(settings.state)
    with VerifierPool(unconfined=unconfined) as pool:
        facts = Facts(settings, progress, pool, role, carded is not None, carded)
        for name, check, roles in CHECKS:
            if role not in roles:
                continue
            try:
                finding = check(facts)
            except Exception as error:
                finding = of_error(error)
            if finding is not None:
                facts.findings[name] = finding
        if client:
            try_model(facts, trial)
    if client:
        return Checklist(facts.findings, facts.prediction)
    return Checklist(facts.findings, following="pubswap evaluate")


def run_doctor(
    settings: ClientSettings, trial: bool, as_json: bool, role: Role, card: Path | None
) -> bool:
    """Print the report; returns whether nothing failed. `card` is a run card's file."""
    if launched_rank() not in (None, 0):
        run_follower(settings)
        return True
    carded = read_card(card) if card else None
    with progress_bar() as progress:
        checklist = examine(settings, progress, trial=trial, role=role, carded=carded)
    if as_json:
        sys.stdout.write(escaped(checklist.json()) + "\n")
    else:
        Console().print(checklist.rendered())
    return checklist.healthy

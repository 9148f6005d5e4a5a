"""`pubswap client doctor`: all checks in order.

Changes nothing but the ledger: it asks the coordinator only for its version and the run, takes no
lock, and keeps the trial step's adapter in memory.
"""

from collections.abc import Callable

from rich.console import Console

from pubswap_client.consent.policy import allows_unconfined
from pubswap_client.distributed.launch import launched_rank, run_follower
from pubswap_client.doctor import coordinator, memory, model, private_data, state_folder
from pubswap_client.doctor.facts import Facts
from pubswap_client.doctor.findings import Checklist, Finding, of_error
from pubswap_client.doctor.trial import try_model
from pubswap_client.settings import ClientSettings
from pubswap_protocol.command_line.progress_bar import progress_bar
from pubswap_protocol.verifiers import VerifierPool

CHECKS: dict[str, Callable[[Facts], Finding | None]] = {
    "membership": state_folder.check_membership,
    "daemon": state_folder.check_daemon,
    "coordinator": coordinator.check_coordinator,
    "token and run": coordinator.check_run,
    "policy": state_folder.check_policy,
    "settings": coordinator.check_settings,
    "model files": model.check_model,
    "chat template": model.check_template,
    "private data": private_data.check_file,
    "number of problems": private_data.check_count,
    "prompt lengths": private_data.check_prompt_lengths,
    "sandbox": private_data.check_sandbox,
    "answers": private_data.check_answers,
    "device": memory.check_device,
    "memory": memory.check_memory,
    "replicas": memory.check_replicas,
}
"""A check returns what it found, which may be that it needs an earlier check to succeed.

None means that there is nothing to check. It notes in the facts what later checks need.
"""


def examine(facts: Facts, trial: bool = True) -> Checklist:
    """Perform all checks once; an error fails its own check, and the others go on."""
    for name, check in CHECKS.items():
        try:
            finding = check(facts)
        except Exception as error:
            finding = of_error(error)
        if finding is not None:
            facts.findings[name] = finding
    try_model(facts, trial)
    return Checklist(facts.findings)


def run_doctor(settings: ClientSettings, trial: bool) -> bool:
    """Print the report; returns whether nothing failed."""
    if launched_rank() not in (None, 0):
        run_follower(settings)
        return True
    with (
        progress_bar() as progress,
        VerifierPool(unconfined=allows_unconfined(settings.state)) as pool,
    ):
        checklist = examine(Facts(settings, progress, pool), trial)
    Console().print(checklist.rendered())
    return checklist.healthy

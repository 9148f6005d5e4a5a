"""Checks of the coordinator, the run, and its public problems."""

from pathlib import Path

from pubswap_client.consent.member_client import member_client
from pubswap_client.coordinator.retry import ONCE
from pubswap_client.doctor.findings import Finding, failure, of_error, ok, warning
from pubswap_client.state.membership import StoredMembership
from pubswap_protocol import paths
from pubswap_protocol.errors import (
    InvalidSettings,
    LocalFault,
    PubSwapError,
    Unauthenticated,
    UnknownRun,
    UnknownSetting,
)
from pubswap_protocol.messages import RunView, SetKind
from pubswap_protocol.problems import PromptLimit, parse_problems
from pubswap_protocol.terms import check_required
from pubswap_protocol.verifiers import verifier_version

_OTHER_VERSION = "Install the version of pubswap that the operator runs."


def check_coordinator(state: Path, stored: StoredMembership) -> Finding:
    """Check that it answers, and speaks our protocol's version."""
    with member_client(state, stored, ONCE) as api:
        try:
            version = api.version()
            api.check_version()
        except (LocalFault, InvalidSettings) as error:  # of ledger or policy; says what to do
            return of_error(error)
        except PubSwapError as error:
            return of_error(
                error,
                "Check that the address in membership.json is the operator's, and that firewalls "
                "and proxies let this machine reach it; then ask the operator whether it runs."
                if error.retryable
                else _OTHER_VERSION,
            )
    return ok(
        f"{stored.coordinator} answers: pubswap {version.software}, protocol {version.protocol} "
        f"(ours is {paths.PROTOCOL_VERSION})"
    )


def check_run(state: Path, stored: StoredMembership) -> tuple[Finding, RunView | None]:
    """Check the token, and that its run has not ended; reading the run leaves no trace there."""
    member = stored.membership
    with member_client(state, stored, ONCE) as api:
        try:
            run = api.run(member.run)
            check_required(run.requires)
        except PubSwapError as error:
            return of_error(error, _run_advice(error, stored.coordinator)), None
    text = f"valid as {member.role} of {run.name}, which is {run.state}"
    if run.round:
        text += f" in round {run.round} of {run.settings.rounds}"
    if run.state.ended:
        advice = "Ask for an invite to another run."
        return failure(f"{text}: nothing is left to train", advice), run
    try:
        installed = verifier_version(run.settings.verifier)
    except InvalidSettings as error:
        return of_error(error), run
    if run.verifier_version not in (None, installed):
        judged = f"the run's verifier is {run.verifier_version}, ours is {installed}"
        return failure(f"{text}, but {judged}", _OTHER_VERSION), run
    if run.paused:
        advice = "Start anyway: training goes on when the operator resumes."
        return warning(f"{text} and paused", advice), run
    return ok(text), run


def _run_advice(error: PubSwapError, url: str) -> str:
    if isinstance(error, Unauthenticated):
        return (
            "It was revoked, or replaced by a newer one. Ask the operator for an invite; then, "
            f"with the same --state: pubswap client enroll --coordinator {url} --invite CODE"
        )
    if isinstance(error, UnknownRun):
        return "Ask the operator for an invite to a run that exists."
    if isinstance(error, UnknownSetting):
        return _OTHER_VERSION
    return "Try again in a minute; if the error persists, send this message to the operator."


def check_prompts(
    state: Path, stored: StoredMembership, limit: PromptLimit, kind: SetKind
) -> Finding:
    """Check that no prompt of a set exceeds the run's limit; raises InvalidProblems with a list."""
    with member_client(state, stored, ONCE) as api:
        text = api.problem_set(stored.membership.run, kind)
    problems = parse_problems(text, f"the {kind} set", extra="ignore")
    limit.check(problems, f"The operator's {kind} set")
    return ok(f"{len(problems)} of them, none over the limit of {limit.max_tokens} tokens")

"""Checks of the coordinator, the run, and its public problems."""

from pubswap_client.consent.member_client import member_client
from pubswap_client.coordinator.retry import ONCE
from pubswap_client.daemon.reporters import check_trackers
from pubswap_client.daemon.session import check_possible
from pubswap_client.doctor.facts import Facts
from pubswap_client.doctor.findings import Finding, failure, of_error, ok, skipped, warning
from pubswap_client.training.accountant import check_installed
from pubswap_protocol import paths
from pubswap_protocol.errors import (
    InvalidSettings,
    LocalFault,
    PubSwapError,
    Unauthenticated,
    UnknownRun,
    UnknownSetting,
)
from pubswap_protocol.messages import Role, SetKind
from pubswap_protocol.problems import parse_problems
from pubswap_protocol.terms import check_required
from pubswap_protocol.verifiers import verifier_version

_OTHER_VERSION = "Install the version of pubswap that the operator runs."


def check_coordinator(facts: Facts) -> Finding:
    """Check that it answers, and speaks our protocol's version."""
    facts.stage("asking the coordinator")
    if facts.stored is None:
        return skipped("a membership")
    with member_client(facts.settings.state, facts.stored, ONCE) as api:
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
        f"{facts.stored.coordinator} answers: pubswap {version.software}, "
        f"protocol {version.protocol} (ours is {paths.PROTOCOL_VERSION})"
    )


def check_run(facts: Facts) -> Finding:
    """Check the token, and that its run has not ended; reading the run leaves no trace there."""
    stored = facts.stored
    if stored is None or not facts.good("coordinator"):
        return skipped("a coordinator that answers")
    member = stored.membership
    with member_client(facts.settings.state, stored, ONCE) as api:
        try:
            run = api.run(member.run)
            check_required(run.requires)
        except PubSwapError as error:
            return of_error(error, _run_advice(error, stored.coordinator))
    facts.run = run
    text = f"valid as {member.role} of {run.name}, which is {run.state}"
    if run.round:
        text += f" in round {run.round} of {run.settings.rounds}"
    if run.state.ended:
        advice = "Ask for an invite to another run."
        return failure(f"{text}: nothing is left to train", advice)
    try:
        installed = verifier_version(run.settings.verifier)
    except InvalidSettings as error:
        return of_error(error)
    if run.verifier_version not in (None, installed):
        judged = f"the run's verifier is {run.verifier_version}, ours is {installed}"
        return failure(f"{text}, but {judged}", _OTHER_VERSION)
    if run.paused:
        advice = "Start anyway: training goes on when the operator resumes."
        return warning(f"{text} and paused", advice)
    return ok(text)


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


def check_settings(facts: Facts) -> Finding:
    """Check our own settings against the run's, as a start does."""
    settings, run = facts.settings, facts.run
    if run is None:
        return skipped("the run")
    check_possible(run.settings, settings)
    if facts.role is Role.CLIENT:
        check_installed(run.settings)
        check_trackers(settings.track)
    return ok(f"they fit the run; engine {settings.engine}")


def check_public_prompts(facts: Facts) -> Finding | None:
    """Check the operator's prompts, which this member answers, if the run exchanges responses."""
    if facts.run is not None and not facts.run.settings.exchange:
        return None
    return _check_prompts(facts, SetKind.PUBLIC)


def check_test_prompts(facts: Facts) -> Finding:
    """Check the operator's prompts, which this evaluator answers."""
    return _check_prompts(facts, SetKind.TEST)


def _check_prompts(facts: Facts, kind: SetKind) -> Finding:
    """Check that no prompt of a set exceeds the run's limit; raises InvalidProblems with a list."""
    stored, run = facts.stored, facts.run
    if stored is None or facts.tokenizer is None or run is None:
        return skipped("a membership and a tokenizer")
    with member_client(facts.settings.state, stored, ONCE) as api:
        text = api.problem_set(stored.membership.run, kind)
    problems = parse_problems(text, f"the {kind} set", extra="ignore")
    limit = facts.tokenizer.limit(run.settings)
    limit.check(problems, f"The operator's {kind} set")
    return ok(f"{len(problems)} of them, none over the limit of {limit.max_tokens} tokens")

"""Checks of the coordinator and of the run."""

from pubswap_client.consent.member_client import member_client
from pubswap_client.coordinator.retry import ONCE
from pubswap_client.daemon.reporters import check_trackers
from pubswap_client.daemon.session import check_possible
from pubswap_client.doctor.facts import Facts
from pubswap_client.doctor.findings import Finding, failure, of_error, ok, skipped, warning
from pubswap_client.rollout.engine_choice import chosen_engine, why_not_vllm
from pubswap_client.training.accountant import check_installed
from pubswap_protocol import paths
from pubswap_protocol.errors import Unauthenticated, UnknownRun
from pubswap_protocol.terms import check_required
from pubswap_protocol.verifiers import verifier_version

_REISSUE = "Ask the operator for `pubswap member reissue`, and enrol again."


def check_coordinator(facts: Facts) -> Finding:
    """Check that it answers, and speaks our protocol's version."""
    facts.stage("asking the coordinator")
    if facts.stored is None:
        return skipped("a membership")
    with member_client(facts.settings.state, facts.stored, ONCE) as api:
        version = api.version()
        api.check_version()
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
        except (Unauthenticated, UnknownRun) as error:
            return of_error(error, _REISSUE)
    check_required(run.requires)
    facts.run = run
    text = f"valid as {member.role} of {run.name}, which is {run.state}"
    if run.round:
        text += f" in round {run.round} of {run.settings.rounds}"
    if run.state.ended:
        advice = "Ask for an invite to another run."
        return failure(f"{text}: nothing is left to train", advice)
    installed = verifier_version(run.settings.verifier)
    if run.verifier_version not in (None, installed):
        judged = f"the run's verifier is {run.verifier_version}, ours is {installed}"
        return failure(f"{text}, but {judged}", "Install the operator's version of it.")
    if run.paused:
        advice = "Start anyway: training goes on when the operator resumes."
        return warning(f"{text} and paused", advice)
    return ok(text)


def check_settings(facts: Facts) -> Finding:
    """Check our own settings against the run's, as a start does."""
    settings, run = facts.settings, facts.run
    if run is None:
        return skipped("the run")
    check_possible(run.settings, settings)
    check_installed(run.settings)
    check_trackers(settings.track)
    reason = why_not_vllm(settings, run.settings) if settings.engine == "auto" else None
    engine = chosen_engine(settings, run.settings)
    return ok(f"they fit the run; engine {engine}{f', not vLLM: {reason}' if reason else ''}")

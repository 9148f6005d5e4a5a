"""The coordinator: is it there, does it speak our protocol, does it know our token."""

from pubswap_client.api import CoordinatorClient
from pubswap_client.doctor.finding import Finding, failure, of_error, ok, warning
from pubswap_client.membership import StoredMembership
from pubswap_client.retry import ONCE
from pubswap_protocol import paths
from pubswap_protocol.errors import PubSwapError, Unauthenticated, UnknownRun, UnknownSetting
from pubswap_protocol.messages import RunState, RunView
from pubswap_protocol.required import check_known

COORDINATOR, RUN = "coordinator", "token and run"
_OVER = (RunState.FINISHED, RunState.CANCELLED)


def check_coordinator(stored: StoredMembership) -> Finding:
    """It answers, with our protocol's version."""
    with CoordinatorClient(stored.coordinator, backoff=ONCE, tls=stored.tls) as api:
        try:
            version = api.version()
            api.check_version()
        except PubSwapError as error:
            return of_error(
                COORDINATOR,
                error,
                "See that the address in membership.json is the operator's, and that a firewall or "
                "proxy lets this machine reach it; then ask the operator whether it runs."
                if error.retryable
                else "Install the version of pubswap that the operator runs.",
            )
    return ok(
        COORDINATOR,
        f"{stored.coordinator} answers: pubswap {version.software}, protocol {version.protocol} "
        f"(ours is {paths.PROTOCOL_VERSION})",
    )


def ask_run(stored: StoredMembership) -> tuple[Finding, RunView | None]:
    """The token is good and its run is under way; reading the run leaves no trace there."""
    member = stored.membership
    with CoordinatorClient(stored.coordinator, member.token, ONCE, tls=stored.tls) as api:
        try:
            run = api.run(member.run)
            check_known(run.requires)
        except Unauthenticated as error:
            return of_error(
                RUN,
                error,
                "It was revoked, or replaced by a newer one. Ask the operator for an invite; then, "
                f"with the same --state: pubswap client enroll --coordinator {stored.coordinator} "
                "--invite CODE",
            ), None
        except UnknownRun as error:
            return of_error(
                RUN, error, "Ask the operator for an invite to a run that exists."
            ), None
        except UnknownSetting as error:
            return of_error(
                RUN, error, "Install the version of pubswap that the operator runs."
            ), None
        except PubSwapError as error:
            advice = "Ask again in a minute; if it stays so, tell the operator this message."
            return of_error(RUN, error, advice), None
    return check_run(run, stored), run


def check_run(run: RunView, stored: StoredMembership) -> Finding:
    """There is something left to train."""
    found = f"valid as {stored.membership.role} of {run.name}, which is {run.state}"
    if run.round:
        found += f" in round {run.round} of {run.settings.rounds}"
    if run.state in _OVER:
        return failure(
            RUN, f"{found}: nothing is left to train", "Ask for an invite to another run."
        )
    if run.paused:
        return warning(
            RUN, f"{found} and paused", "Start anyway: training goes on when the operator resumes."
        )
    return ok(RUN, found)

"""Wire the parts of `pubswap client start` and `pubswap evaluate` together."""

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shlex import quote

from rich.console import Console

from pubswap_client.base_model import own_model
from pubswap_client.consent.consent import Consent, adopt
from pubswap_client.consent.ledger import Ledger
from pubswap_client.consent.participation import Participation
from pubswap_client.consent.policy import allows_unconfined
from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.daemon.context import MemberContext
from pubswap_client.daemon.daemon import Daemon
from pubswap_client.daemon.evaluator import Evaluator, Judged, judge
from pubswap_client.daemon.factories import make_engine, make_trainer, open_privacy
from pubswap_client.daemon.held_out import HeldOut
from pubswap_client.daemon.own_settings import (
    Deadline,
    RoundLimits,
    own_rank,
    own_settings,
    trained_problems,
)
from pubswap_client.daemon.recorder import Recorder
from pubswap_client.daemon.reporters import LiveDisplay, LogLines, Reporter, Reporters, tracking
from pubswap_client.data.holdout import split
from pubswap_client.distributed.launch import (
    launched_rank,
    load_policy,
    open_process_group,
    run_follower,
)
from pubswap_client.distributed.process_group import ProcessGroup
from pubswap_client.policy.policy import Policy
from pubswap_client.policy.self_check import check_packed_path
from pubswap_client.rollout.transformers_engine import RolloutEngine
from pubswap_client.run_card import CARD, card_bytes
from pubswap_client.settings import ClientSettings
from pubswap_client.state.journal import Journal, JournalOwner
from pubswap_client.state.lock import locked
from pubswap_client.state.membership import StoredMembership, load_membership
from pubswap_client.state.status import note_doing
from pubswap_client.training.accountant import check_installed
from pubswap_protocol.command_line.progress_bar import each_second
from pubswap_protocol.draws import seed_for
from pubswap_protocol.errors import Conflict, Forbidden, InvalidProblems, InvalidSettings
from pubswap_protocol.files import write_whole
from pubswap_protocol.messages import Digest, Hello, Role, RunState, RunView, SetKind
from pubswap_protocol.model import ModelCard
from pubswap_protocol.problems import (
    Problem,
    check_topics,
    prompts_digest,
    read_problems,
    read_set,
)
from pubswap_protocol.sent_prompts import check_sent_prompts
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import Adapter
from pubswap_protocol.terms import agreed, check_public, check_required
from pubswap_protocol.verifiers import VerifierPool, verifier_version
from pubswap_protocol.verifiers.confined.worker import Scored
from pubswap_protocol.verifiers.registry import MAX_VERSION, check_judges, versions_named
from pubswap_protocol.verifiers.verifier import Verifier

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Session:
    """A member that has said hello: its run, its policy, and its rollout engine."""

    api: CoordinatorClient
    name: str
    run: RunView
    policy: Policy
    engine: RolloutEngine
    pool: VerifierPool
    participation: Participation | None = None  # a simulation and an evaluator have no policy

    def score(self, cases: Sequence[tuple[str, Problem]]) -> list[float]:
        """The rewards of responses, each with its problem, by the run's verifier."""
        return self.pool.score_many(self.run.settings.verifier, cases)

    def judge(self, cases: Sequence[tuple[str, Problem]]) -> list[Scored]:
        """As `score`, with the scores of parts."""
        return self.pool.judge_many(self.run.settings.verifier, cases)


def run_client(settings: ClientSettings, end: float = math.inf) -> RunState | None:
    """Train for one organisation until the run ends; returns the run's final state.

    In a process group, only the leader returns it; the others help, and return None. No step begins
    that would not be done by `end`, a time of time.monotonic().
    """
    if launched_rank() not in (None, 0):
        run_follower(settings)
        return None
    if settings.data is None:
        raise InvalidSettings("Say where the private problems are: --data private.jsonl")
    problems = read_problems(settings.data)
    trained, _ = split(problems, settings.holdout)
    with (
        open_process_group(settings) as process_group,
        _open_session(settings, Role.CLIENT, process_group) as session,
        _reporter(settings, session, prompts_digest(trained)) as reporter,
    ):
        daemon = make_daemon(
            settings, session, problems, reporter, process_group=process_group, end=end
        )
        return daemon.work()


def make_daemon(
    settings: ClientSettings,
    session: Session,
    problems: Sequence[Problem],
    reporter: Reporter,
    process_group: ProcessGroup | None = None,
    end: float = math.inf,
) -> Daemon:
    """A client's daemon, with its journal in the state folder.

    Raises InvalidProblems if there are too few private problems, or a private or public prompt is
    too long. Every client thus refuses the same public prompts, at the start rather than in a step.
    """
    run = session.run
    session.policy.prompt_limit.check(problems, str(settings.data or session.name))
    session.pool.prepare(problem.verifier for problem in problems if problem.verifier)
    problems, held_out = trained_problems(problems, settings, run.settings)
    private_settings = own_settings(settings, run.settings)
    exchanges = run.settings.exchange is not None
    public = _problem_set(session, SetKind.PUBLIC) if exchanges else []
    privacy = open_privacy(settings.state, run.id, private_settings, len(problems))
    verifier = verifier_version(run.settings.verifier)
    context = MemberContext(
        api=session.api,
        run=run,
        trainer=make_trainer(
            settings=settings,
            policy=session.policy,
            engine=session.engine,
            client=session.name,
            problems=problems,
            scorer=session.score,
            process_group=process_group,
            privacy=privacy,
        ),
        journal=Journal(settings.state / "progress", JournalOwner.of(run, session.name)),
        reporter=reporter,
        privacy=privacy,
        held_out=HeldOut(settings.state, run.id, held_out, verifier) if held_out else None,
        limits=RoundLimits.of(settings, run.settings),
        deadline=Deadline(end),
        public=public,
    )
    return Daemon(context, session.participation)


@contextmanager
def _reporter(settings: ClientSettings, session: Session, problems: Digest) -> Iterator[Reporter]:
    """Report to the state folder, the terminal or as log lines, and to the settings' trackers."""
    console, run = Console(stderr=True, markup=False), session.run
    per_step = own_settings(settings, run.settings).grpo.prompts_per_step
    with ExitStack() as stack:
        reporters: list[Reporter] = [
            stack.enter_context(Recorder(settings.state, run, session.api, problems, per_step)),
        ]
        if console.is_terminal:
            reporters.append(stack.enter_context(LiveDisplay(console)))
        else:
            reporters.append(lines := LogLines())
            stack.enter_context(each_second(lines.look))
        if settings.track:
            described = run.settings.model_dump(mode="json")
            folder = settings.state / "tracking"
            reporters.append(
                stack.enter_context(tracking(settings.track, run.name, folder, described))
            )
        yield Reporters(reporters)


def run_evaluator(settings: ClientSettings) -> RunState:
    """Evaluate every round's adapter until the run ends; returns the run's final state."""
    with _open_session(settings, Role.EVALUATOR) as session:
        return make_evaluator(settings, session).work()


def make_evaluator(settings: ClientSettings, session: Session) -> Evaluator:
    problems, run = _problem_set(session, SetKind.TEST), session.run
    check_topics(problems, "The operator's test set")

    def judge_adapter(adapter: Adapter) -> list[list[Judged]]:
        session.policy.load_adapter(adapter)
        seed = seed_for(run.settings.seed, "evaluation")
        return judge(session.policy, session.engine, problems, session.judge, seed)

    return Evaluator(session.api, run, judge_adapter)


def _problem_set(session: Session, kind: SetKind) -> list[Problem]:
    """A set of the run; raises InvalidProblems if it is empty, or no step could take it.

    Raises Conflict if a verifier that it names has another version at the coordinator.
    """
    data, versions = session.api.problem_set(session.run.id, kind)
    if kind is SetKind.PUBLIC and session.participation is not None:
        check_public(session.run, data)
    problems = read_set(data, f"the {kind} set", extra="ignore")
    if not problems:
        raise InvalidProblems(f"The operator's {kind} set has no problems; ask the operator.")
    session.policy.prompt_limit.check(problems, f"The operator's {kind} set")
    if kind is SetKind.PUBLIC and not session.run.round:
        # A run under way goes on: perhaps no step draws the largest prompts together.
        per_step = session.run.settings.grpo.prompts_per_step
        check_sent_prompts(problems, per_step, f"The operator's {kind} set")
    verifier = session.run.settings.verifier
    check_judges(problems, verifier, f"The operator's {kind} set")
    if versions is not None and versions != (own := versions_named(problems, verifier)):
        raise Conflict(
            f"The operator's {kind} set names the verifiers {versions[:MAX_VERSION]}, yours are "
            f"{own}; install the same versions."
        )
    return problems


def check_possible(run: RunSettings, client: ClientSettings) -> None:
    """Raise InvalidSettings if this machine's settings cannot do what the run needs."""
    RoundLimits.of(client, run)
    own_settings(client, run)
    own_rank(client, run)


def check_role(state: Path, stored: StoredMembership, role: Role) -> None:
    """Raise Forbidden if the state folder's membership has another role."""
    member = stored.membership
    if member.role is not role:
        command = "evaluate" if member.role is Role.EVALUATOR else "client start"
        raise Forbidden(
            f"{state} is the membership of {member.name}, whose role is {member.role}; this "
            f"command needs the role {role}. "
            f"Use `pubswap {command} --state {quote(str(state))}`."
        )


def hello_of(card: ModelCard, verifier: Verifier) -> Hello:
    """A member's base model, and its version of the run's verifier."""
    return Hello(
        config_digest=card.config_digest,
        tokenizer_digest=card.tokenizer_digest,
        weights_digest=card.weights_digest,
        verifier_version=verifier_version(verifier),
    )


@contextmanager
def _open_session(
    settings: ClientSettings, role: Role, process_group: ProcessGroup | None = None
) -> Iterator[Session]:
    """Say hello with the right model, and load it."""
    stored = load_membership(settings.state)
    check_role(settings.state, stored, role)
    membership = stored.membership
    with (
        locked(settings.state),
        _connected(settings, stored) as (api, participation),
        VerifierPool(unconfined=allows_unconfined(settings.state)) as pool,
    ):
        api.check_version()
        run = api.run(membership.run)
        if participation is not None:
            if (path := adopt(settings.state, run, stored.coordinator)) is not None:
                log.warning(
                    "No policy was found. Read %s; it now allows what run %s asks.", path, run.name
                )
            participation.wait(partial(note_doing, settings.state, run))
            assert participation.view is not None, (
                "the policy was asked about the run as it was shown"
            )
            run = participation.view
        run = agreed(run)
        if participation is not None:
            participation.trains = run
        check_required(run.requires)
        check_possible(run.settings, settings)
        if role is Role.CLIENT:
            check_installed(run.settings)
        log.info("Checking the base model's files, and loading it.")
        folder, card = own_model(settings, run)
        if role is Role.CLIENT:
            write_whole(settings.state / CARD, card_bytes(run))  # for `client personalize`
        pool.prepare([run.settings.verifier])
        hello = hello_of(card, run.settings.verifier)
        api.hello(run.id, hello)
        if participation is not None:
            participation.hello = hello
        policy = load_policy(settings, folder, run.model, run.settings, process_group)
        log.info("%s joins run %s on %s.", membership.name, run.name, policy.device)
        if role is Role.CLIENT:
            # Before the engine, as the followers do.
            check_packed_path(policy, settings.gradient_checkpointing)
        evaluator = role is Role.EVALUATOR
        with closing(make_engine(settings, policy, folder, process_group, evaluator)) as engine:
            yield Session(api, membership.name, run, policy, engine, pool, participation)


@contextmanager
def _connected(
    settings: ClientSettings, stored: StoredMembership
) -> Iterator[tuple[CoordinatorClient, Participation | None]]:
    """Connect to the coordinator; an organisation that trains does so under its policy.

    Raises RefusedByPolicy, before anything is sent, if the coordinator is not allowed.
    """
    ledger = Ledger(settings.state)
    member, url = stored.membership, stored.coordinator
    if member.role is not Role.CLIENT:
        with CoordinatorClient(url, member.token, tls=stored.tls, on_send=ledger.record) as api:
            yield api, None
        return
    consent = Consent(settings.state, url, ledger)
    consent.check_coordinator()
    with CoordinatorClient(
        url,
        member.token,
        tls=stored.tls,
        on_send=consent.record,
        buckets=consent.buckets,
    ) as api:
        yield api, Participation(api, member.run, consent)

"""A whole federation in one process: the real daemons as threads, taking turns at one model."""

import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Self

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.daemon.evaluator import Evaluator, Judged, pass_at_1
from pubswap_client.daemon.factories import make_engine
from pubswap_client.daemon.reporters import LogLines, Reporters
from pubswap_client.daemon.session import (
    Session,
    check_possible,
    hello_of,
    make_daemon,
    make_evaluator,
)
from pubswap_client.demo.watch import evaluated
from pubswap_client.distributed.launch import load_policy
from pubswap_client.policy.self_check import check_packed_path
from pubswap_client.recipes.runfile import create_and_open
from pubswap_client.settings import ClientSettings
from pubswap_client.state.membership import StoredMembership, load_membership, save_membership
from pubswap_protocol import paths
from pubswap_protocol.errors import InvalidSettings, WrongState
from pubswap_protocol.files import write_whole
from pubswap_protocol.messages import CreateInvite, Role, WholeRun
from pubswap_protocol.tensors.adapter import Adapter
from pubswap_protocol.verifiers import VerifierPool, verifier_version
from pubswap_simulation.coordinator import Coordinator
from pubswap_simulation.job import Job, JobReport
from pubswap_simulation.results import DonatedTokens
from pubswap_simulation.shared_policy import SharedPolicy, Stopped, trainer_in_turns
from pubswap_simulation.step_log import StepLog, donated_by_round

EVALUATOR = "evaluator"
_RUN_ID = "founded"  # written once the run has begun
LOOK_SECONDS = 5.0  # between two checks that the run can go on


class Federation:
    """The members of one run, ready to work.

    As a context manager, it begins the run in `work`, or continues it there; entering raises
    InvalidSettings or InvalidProblems for a run that is not possible.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        job: Job,
        work: Path,
        settings: ClientSettings,
        on_progress: Callable[[], None],
    ) -> None:
        """All members have the same `settings`.

        `on_progress` is called after each step, and when another activity begins or ends, from any
        thread.
        """
        self._coordinator = coordinator
        self._job = job
        self._work = work
        self._settings = settings
        self._on_progress = on_progress
        self._logs: dict[str, StepLog] = {}
        self._score: float | None = None
        self._doing = ""

    def progress(self) -> JobReport:
        logs = list(self._logs.values())
        rewards = [log.reward for log in logs if log.reward is not None]
        return JobReport(
            doing=self._doing,
            steps=sum(log.steps for log in logs),
            reward=fmean(rewards) if rewards else None,
            score=self._score,
        )

    def _begin(self, doing: str) -> None:
        self._doing = doing
        self._on_progress()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.operator = stack.enter_context(self._coordinator.operator())
            run = begin_run(self._coordinator, self.operator, self._job, self._work)
            self._run = self.operator.whole_run(run)
            self._score = next(reversed(evaluated(self._run)), None)
            self._load(stack)
            self._members = [self._client(stack, name) for name in self._job.private]
            self._members.append(self._evaluator(stack))
            self._begin("")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def work(self) -> WholeRun:
        """Work until the run is finished and evaluated; the first member to fail ends it.

        Raises WrongState if the run cannot go on, because there is no operator to change it.
        """
        with ThreadPoolExecutor(len(self._members), "member") as threads:
            futures = [threads.submit(member) for member in self._members]
            try:
                self._wait(futures)
            finally:
                # After a failure or Ctrl-C, stop the others: they would wait forever.
                if not all(future.done() for future in futures) or any(
                    future.exception() for future in futures
                ):
                    self._shared.stop()
                    self._coordinator.stop()
        errors = [error for future in futures if (error := future.exception())]
        for error in sorted(errors, key=lambda error: isinstance(error, Stopped)):
            raise error
        self._coordinator.flush()
        return self.operator.whole_run(self._run.id)

    def _wait(self, futures: Sequence[Future[object]]) -> None:
        """Wait until all are done or one has failed; raises WrongState if the run is stuck."""
        while True:
            done, working = wait(futures, LOOK_SECONDS, FIRST_EXCEPTION)
            if not working or any(future.exception() for future in done):
                return
            if (failure := self._coordinator.failure(self._run.id)) is not None:
                raise WrongState(failure)

    def rewards(self) -> dict[str, list[float]]:
        """Mean reward of each step, by client."""
        return {name: log.rewards() for name, log in self._logs.items()}

    def donated(self) -> tuple[DonatedTokens, ...]:
        """Statistics of the donated tokens over all clients, by round."""
        return donated_by_round(self._logs.values(), self._run.settings.local_steps)

    def _load(self, stack: ExitStack) -> None:
        check_possible(self._run.settings, self._settings)
        folder = self._job.folder
        self._begin("loading the model")
        policy = load_policy(self._settings, folder, self._run.model, self._run.settings)
        self._begin("comparing packs with the model's own pass")
        check_packed_path(policy, self._settings.gradient_checkpointing)
        settings = self._settings.model_copy(update={"state": self._work})
        self._engine = stack.enter_context(closing(make_engine(settings, policy, folder)))
        self._shared = SharedPolicy(policy)
        self._pool = stack.enter_context(VerifierPool(unconfined=True))

    def _session(self, stack: ExitStack, name: str) -> tuple[ClientSettings, Session]:
        """A member's settings and its session; says hello as any member does."""
        state = member_state(self._work, name)
        token = load_membership(state).membership.token
        api = stack.enter_context(self._coordinator.client(token))
        api.hello(self._run.id, hello_of(self._job.card(), self._run.settings.verifier))
        session = Session(api, name, self._run, self._shared.policy, self._engine, self._pool)
        return self._settings.model_copy(update={"state": state}), session

    def _client(self, stack: ExitStack, name: str) -> Callable[[], object]:
        settings, session = self._session(stack, name)
        log = StepLog(settings.state / "rewards", self._on_progress)
        self._logs[name] = log
        reporter = Reporters([log, LogLines()])
        daemon = make_daemon(settings, session, self._job.problems(name), reporter)
        trainer = trainer_in_turns(daemon.context.trainer, self._shared.member())
        daemon.context = replace(daemon.context, trainer=trainer)
        return partial(_named, name, daemon.work)

    def _evaluator(self, stack: ExitStack) -> Callable[[], object]:
        evaluator: Evaluator = make_evaluator(*self._session(stack, EVALUATOR))
        turn, judge = self._shared.member(), evaluator.judge

        def judge_in_turn(adapter: Adapter) -> list[list[Judged]]:
            with turn:
                self._begin("evaluating")
                judged = judge(adapter)
                self._score = pass_at_1(judged)[0]
                self._begin("")
            return judged

        evaluator.judge = judge_in_turn
        return partial(_named, EVALUATOR, evaluator.work)


def _named(name: str, work: Callable[[], object]) -> object:
    """Work in a thread with a member's name, which the lines of the run's log then have."""
    threading.current_thread().name = name
    return work()


def resumable_folder(work: Path) -> Path:
    """The folder, emptied unless the run in it has begun."""
    if not (work / _RUN_ID).exists():
        shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    return work


def begin_run(coordinator: Coordinator, operator: CoordinatorClient, job: Job, work: Path) -> str:
    """The id of the job's run, begun now or by an earlier process.

    Raises InvalidSettings if it was begun with another version of the verifier.
    """
    begun, current = work / _RUN_ID, verifier_version(job.settings.verifier)
    if begun.exists():
        run, rules = begun.read_text(encoding="utf-8").split()
        if rules != current:
            raise InvalidSettings(
                f"The run in {work} was begun with the verifier {rules}; it is {current} now. "
                "Remove the folder to start again, or continue with the version that began it."
            )
        return run
    run = create_and_open(operator, job.prepared()).id
    roles = dict.fromkeys(job.private, Role.CLIENT) | {EVALUATOR: Role.EVALUATOR}
    for name, role in roles.items():
        invite = operator.invite(run, CreateInvite(name=name, role=role))
        with coordinator.client() as anonymous:
            membership = anonymous.enroll(invite.invite)
        stored = StoredMembership(coordinator=operator.url, membership=membership)
        save_membership(member_state(work, name), stored)
    operator.move_run(run, paths.RUN_START)
    write_whole(begun, f"{run} {current}".encode())
    return run


def member_state(work: Path, name: str) -> Path:
    return work / "members" / name

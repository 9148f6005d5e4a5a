"""A whole federation in one process: the real daemons as threads, taking turns at one model."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.daemon.daemon import Daemon
from pubswap_client.daemon.evaluator import Evaluator
from pubswap_client.daemon.factories import make_engine
from pubswap_client.daemon.session import (
    Session,
    check_possible,
    hello_of,
    make_daemon,
    make_evaluator,
)
from pubswap_client.demo.watch import evaluated
from pubswap_client.distributed.launch import load_policy
from pubswap_client.policy.logprobs import check_packed_path
from pubswap_client.policy.policy import Policy
from pubswap_client.rollout.transformers_engine import RolloutEngine
from pubswap_client.settings import ClientSettings
from pubswap_protocol.messages import WholeRun
from pubswap_protocol.tensors.adapter import Adapter, AdapterFile
from pubswap_protocol.verifiers import VerifierPool
from pubswap_simulation.coordinator import Coordinator
from pubswap_simulation.job import Job
from pubswap_simulation.results import RewardLog
from pubswap_simulation.setup import EVALUATOR, founded, state_of, token_of
from pubswap_simulation.shared_policy import Stopped, Turns, trainer_in_turns

Told = Callable[[], None]


@dataclass(frozen=True)
class _Shared:
    """What all members have in common."""

    job: Job
    run: WholeRun
    work: Path
    machine: ClientSettings
    policy: Policy
    engine: RolloutEngine
    verifiers: VerifierPool
    turns: Turns

    def member(self, api: CoordinatorClient, name: str) -> Session:
        """A member that says hello like any other."""
        verifier = self.run.settings.verifier
        api.hello(self.run.id, hello_of(self.job.card(), verifier))
        score = partial(self.verifiers.score_many, verifier)
        return Session(api, name, self.run, self.policy, self.engine, score)

    def settings(self, name: str) -> ClientSettings:
        """A member's settings: the machine's, with a state folder of its own."""
        return self.machine.model_copy(update={"state": state_of(self.work, name)})


class Federation:
    """The members of one run, to be set to work; a context manager."""

    def __init__(
        self,
        coordinator: Coordinator,
        job: Job,
        work: Path,
        machine: ClientSettings,
        verifiers: VerifierPool,
        told: Told,
    ) -> None:
        """Found the run, or find it again in `work`, on a device and with an engine of `machine`.

        `told` is called after each step and each evaluation, from any thread. Raises
        InvalidSettings or InvalidProblems for a run that cannot be.
        """
        self._coordinator = coordinator
        self._job = job
        self._work = work
        self._machine = machine
        self._verifiers = verifiers
        self._told = told
        self.logs: dict[str, RewardLog] = {}
        self.score: float | None = None  # the last pass@1

    @property
    def steps(self) -> int:
        """Local steps made so far, over all clients."""
        return sum(log.steps for log in self.logs.values())

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.operator = stack.enter_context(self._coordinator.operator())
            run = founded(self._coordinator, self.operator, self._job, self._work)
            shared = stack.enter_context(self._shared(self.operator.whole_run(run)))
            self.run, self._turns = run, shared.turns
            scores = evaluated(shared.run)
            self.score = scores[-1] if scores else None
            self._members = [
                self._daemon(shared, stack.enter_context(self._api(name)), name)
                for name in self._job.private
            ]
            evaluator = stack.enter_context(self._api(EVALUATOR))
            self._members.append(self._evaluator(shared, evaluator))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def work(self) -> WholeRun:
        """Work until the run is finished and evaluated; the first member to fail ends it all."""
        with ThreadPoolExecutor(len(self._members), "member") as threads:
            futures = [threads.submit(member) for member in self._members]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                # Whether all are done, one has failed, or Ctrl-C came: nobody waits any more.
                if not all(future.done() for future in futures) or any(
                    future.exception() for future in futures
                ):
                    self._turns.stop()
                    self._coordinator.stop()
        errors = [error for future in futures if (error := future.exception())]
        for error in sorted(errors, key=lambda error: isinstance(error, Stopped)):
            raise error
        self._coordinator.flush()
        return self.operator.whole_run(self.run)

    def rewards(self) -> dict[str, list[float]]:
        """Of each client's steps."""
        return {name: log.rewards() for name, log in self.logs.items()}

    def _api(self, name: str) -> CoordinatorClient:
        return self._coordinator.client(token_of(self._work, name))

    @contextmanager
    def _shared(self, run: WholeRun) -> Iterator[_Shared]:
        check_possible(run.settings, self._machine, alone=True)
        policy = load_policy(self._machine, self._job.folder, run.model, run.settings)
        check_packed_path(policy)
        machine = self._machine.model_copy(update={"state": self._work})
        with closing(make_engine(machine, policy, self._job.folder)) as engine:
            yield _Shared(
                job=self._job,
                run=run,
                work=self._work,
                machine=machine,
                policy=policy,
                engine=engine,
                verifiers=self._verifiers,
                turns=Turns(policy),
            )

    def _daemon(self, shared: _Shared, api: CoordinatorClient, name: str) -> Callable[[], object]:
        self.logs[name] = log = RewardLog(state_of(self._work, name) / "rewards", self._told)
        problems = self._job.problems(name)
        daemon: Daemon = make_daemon(shared.settings(name), shared.member(api, name), problems, log)
        daemon.trainer = trainer_in_turns(daemon.trainer, shared.turns.seat())
        log.catch_up(daemon.journal, shared.run.settings)
        return daemon.work

    def _evaluator(self, shared: _Shared, api: CoordinatorClient) -> Callable[[], object]:
        evaluator: Evaluator = make_evaluator(
            shared.settings(EVALUATOR), shared.member(api, EVALUATOR)
        )
        seat, pass_at_1 = shared.turns.seat(), evaluator.pass_at_1

        def evaluate(
            adapter: Adapter, residuals: Sequence[AdapterFile]
        ) -> tuple[float, dict[str, float]]:
            seat.residuals = residuals
            with seat:
                found = pass_at_1(adapter, residuals)
            self.score = found[0]
            self._told()
            return found

        evaluator.pass_at_1 = evaluate
        return evaluator.work

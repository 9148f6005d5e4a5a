"""Verification of responses that have arrived: in turns, each submission within a time budget.

A submission is stored before it is verified. So it is in its exchange if it arrived in time,
however long others take, and a restart continues with submissions that have no verdicts.
Verification has threads of its own, and no request waits for it.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial

import structlog
from anyio import CapacityLimiter, to_thread
from tokenizers import Tokenizer

from pubswap_protocol.errors import PubSwapError
from pubswap_protocol.problems import Problem
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.response_form import ResponseForm
from pubswap_protocol.tensors.responses import Group, decode_responses
from pubswap_protocol.verifiers import VerifierPool
from pubswap_server.clock import now
from pubswap_server.database.engine import Database
from pubswap_server.exchange import exchanges
from pubswap_server.exchange.budget import Case
from pubswap_server.exchange.exchanges import Key, Unverified, Verdicts
from pubswap_server.storage.store import BlobStore

log = structlog.get_logger(__name__)

TURN_SECONDS = 0.25  # for a submission, before another's turn
LOOK_SECONDS = 30.0  # between searches for submissions that another process or a failure has left
AT_ONCE = 2  # threads for quick verifiers


class FairQueue:
    """A fair queue: runs take turns, and in each its members, with one submission at a time."""

    def __init__(self) -> None:
        self._runs: OrderedDict[str, OrderedDict[str, deque[Key]]] = OrderedDict()
        self._busy: set[tuple[str, str]] = set()

    def add(self, key: Key) -> None:
        run, _, _, member = key
        self._runs.setdefault(run, OrderedDict()).setdefault(member, deque()).append(key)

    def take(self, fits: Callable[[Key], bool] = lambda key: True) -> Key | None:
        """The next submission that fits, of a member that has none in hand.

        It stays first in the member's queue until it is given back.
        """
        for run, members in self._runs.items():
            for member, queue in members.items():
                if (run, member) not in self._busy and fits(queue[0]):
                    self._busy.add((run, member))
                    members.move_to_end(member)
                    self._runs.move_to_end(run)
                    return queue[0]
        return None

    def give_back(self, key: Key, done: bool) -> None:
        """End a turn; a submission that is not done waits for another."""
        run, _, _, member = key
        self._busy.discard((run, member))
        if not done:
            return
        members = self._runs[run]
        members[member].popleft()
        if not members[member]:
            del members[member]
        if not members:
            del self._runs[run]


class Verification:
    """Verification in one server process.

    One of the pool's workers never takes responses that were too slow at first, so that quick ones
    wait only a moment.
    """

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        pool: VerifierPool,
        problems: Callable[[str], list[Problem]],
        tokenizer: Callable[[str], Tokenizer],
    ) -> None:
        """`problems` and `tokenizer` load by digest."""
        self._database, self._blobs, self._pool = database, blobs, pool
        self._problems, self._tokenizer = problems, tokenizer
        self._turns = FairQueue()
        self._cases: dict[Key, tuple[Unverified, Case]] = {}
        self._queued: set[Key] = set()
        self._slow = 0
        self._added = asyncio.Event()
        self._threads = CapacityLimiter(pool.workers)
        self._at_once = CapacityLimiter(AT_ONCE)

    async def at_once(
        self,
        settings: RunSettings,
        tokenizer: str,
        form: ResponseForm,
        problems: Sequence[Problem],
        groups: Sequence[Group],
    ) -> Verdicts | None:
        """Whether each response (P, K) is correct; None if the verifier may take long."""
        if not self._pool.at_once(settings.verifier, problems):
            return None

        def work() -> Verdicts:
            loaded = self._tokenizer(tokenizer)
            verdicts = []
            for problem, group in zip(problems, groups, strict=True):
                texts = [form.text(loaded, response.tokens) for response in group]
                scores = self._pool.score_many(
                    settings.verifier, [(text, problem) for text in texts]
                )
                verdicts.append([settings.is_correct(score) for score in scores])
            return verdicts

        return await to_thread.run_sync(work, limiter=self._at_once)

    def add(self, key: Key) -> None:
        """Verify a stored submission when its turn comes."""
        if key not in self._queued:
            self._queued.add(key)
            self._turns.add(key)
            self._added.set()

    async def run(self) -> None:
        """Verify forever, beginning with submissions left from before."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._pool.workers):
                group.create_task(self._work())
            until = now()
            while True:
                try:
                    keys = await self._database.read(partial(exchanges.unverified, until=until))
                    for key in keys:
                        self.add(key)
                except PubSwapError as error:
                    log.warning("cannot look for responses", error=error.detail)
                await asyncio.sleep(LOOK_SECONDS)
                until = now() - timedelta(seconds=LOOK_SECONDS)

    async def _work(self) -> None:
        while True:
            key = self._turns.take(self._fits)
            if key is None:
                self._added.clear()
                await self._added.wait()
                continue
            run, _, _, member = key
            done, slow = True, int(self._is_slow(key))
            self._slow += slow
            try:
                done = await self._turn(key)
            except PubSwapError as error:
                log.warning("verification failed", run=run, member=member, error=error.detail)
            except Exception:
                log.exception("verification failed", run=run, member=member)
            finally:
                if done:
                    self._queued.discard(key)
                    self._cases.pop(key, None)
                self._slow -= slow
                self._turns.give_back(key, done)
                self._added.set()

    def _fits(self, key: Key) -> bool:
        return not self._is_slow(key) or self._slow < max(1, self._pool.workers - 1)

    def _is_slow(self, key: Key) -> bool:
        return key in self._cases and self._cases[key][1].slow

    async def _turn(self, key: Key) -> bool:
        """Score some of a submission's responses; returns whether nothing is left to do."""
        submission = await self._database.read(partial(exchanges.unverified_submission, key=key))
        if submission is None:
            return True
        rules = submission.rules
        count = len(rules.prompts) * rules.responses_per_prompt
        # After a rollback, the same key may stand for other responses.
        if key not in self._cases or self._cases[key][0] != submission:
            self._cases[key] = submission, Case(count, self._pool.seconds)
        case = self._cases[key][1]
        work = partial(self._score, submission, case)
        await to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._threads)
        if case.next() is not None:
            return False
        width = rules.responses_per_prompt
        verdicts = [case.correct[at : at + width] for at in range(0, count, width)]
        return await self._database.write(
            lambda session: exchanges.verified(
                session, key, submission.stored, verdicts, case.given_up
            )
        )

    def _score(self, submission: Unverified, case: Case) -> None:
        rules, until, slow = submission.rules, time.monotonic() + TURN_SECONDS, case.slow
        problems = self._problems(submission.public)
        tokenizer = self._tokenizer(submission.tokenizer)
        groups = decode_responses(self._blobs.read(submission.stored), rules)
        while (following := case.next()) is not None and case.slow == slow:
            position, seconds = following
            prompt, index = divmod(position, rules.responses_per_prompt)
            text = rules.form.text(tokenizer, groups[prompt][index].tokens)
            item = text, problems[rules.prompts[prompt]]
            scored = self._pool.score(submission.settings.verifier, item, seconds)
            case.note(scored, submission.settings.is_correct(scored.score))
            if time.monotonic() >= until:
                return

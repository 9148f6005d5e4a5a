"""Verdicts on responses that have arrived: in turns, each submission within a budget of time.

A submission is a row before it is verified, so that what arrived in time is in its exchange however
long others' answers take, and so that a restart goes on with what has no verdicts. Nothing else
runs in the threads of this work, and no request waits for it.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial

import structlog
from anyio import CapacityLimiter, to_thread
from tokenizers import Tokenizer

from pubswap_protocol.errors import PubSwapError
from pubswap_protocol.problems import Problem
from pubswap_protocol.tensors.responses import Group, decode_responses
from pubswap_protocol.tokenizer import decode, decode_all
from pubswap_protocol.verifiers import VerifierPool
from pubswap_server.database.engine import Database
from pubswap_server.database.tables import now
from pubswap_server.exchange import exchanges
from pubswap_server.exchange.budget import Case
from pubswap_server.exchange.exchanges import Key, Unverified, Verdicts
from pubswap_server.exchange.turns import FairQueue
from pubswap_server.storage.store import BlobStore

log = structlog.get_logger(__name__)

TURN_SECONDS = 0.25  # of a submission, before another's turn
LOOK_SECONDS = 30.0  # until what another process, or a failure, has left is taken up
AT_ONCE = 2  # threads for verifiers that end soon


class Verification:
    """The verdicts of one server process.

    All but one of the pool's workers may be at responses that were too slow at first, so that
    quick ones never wait for more than a moment.
    """

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        pool: VerifierPool,
        problems: Callable[[str], list[Problem]],
        tokenizer: Callable[[str], Tokenizer],
    ) -> None:
        """`problems` and `tokenizer` are what a digest names."""
        self._database, self._blobs, self._pool = database, blobs, pool
        self._problems, self._tokenizer = problems, tokenizer
        self._turns: FairQueue[Key] = FairQueue()
        self._cases: dict[Key, Case] = {}
        self._queued: set[Key] = set()
        self._slow = 0
        self._added = asyncio.Event()
        self._threads = CapacityLimiter(pool.workers)
        self._at_once = CapacityLimiter(AT_ONCE)

    async def at_once(
        self, verifier: str, tokenizer: str, problems: Sequence[Problem], groups: Sequence[Group]
    ) -> Verdicts | None:
        """Whether each response (P, K) is correct; None if the verifier may take long."""
        if not self._pool.at_once(verifier, problems):
            return None

        def work() -> Verdicts:
            loaded = self._tokenizer(tokenizer)
            verdicts = []
            for problem, group in zip(problems, groups, strict=True):
                texts = decode_all(loaded, (response.tokens for response in group))
                scores = self._pool.score_many(verifier, [(text, problem) for text in texts])
                verdicts.append([score == 1.0 for score in scores])
            return verdicts

        return await to_thread.run_sync(work, limiter=self._at_once)

    def add(self, key: Key) -> None:
        """Verify a submission that is stored, when its turn comes."""
        if key not in self._queued:
            self._queued.add(key)
            self._turns.add(key[0], key[-1], key)
            self._added.set()

    async def run(self) -> None:
        """Verify for ever, beginning with what was left before."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._pool.workers):
                group.create_task(self._work())
            before = now()
            while True:
                try:
                    look = partial(exchanges.unverified, before=before)
                    for key in await self._database.read(look):
                        self.add(key)
                except PubSwapError as error:
                    log.warning("cannot look for responses", error=error.detail)
                await asyncio.sleep(LOOK_SECONDS)
                before = now() - timedelta(seconds=LOOK_SECONDS)

    async def _work(self) -> None:
        while True:
            turn = self._turns.take(self._fits)
            if turn is None:
                self._added.clear()
                await self._added.wait()
                continue
            run, member, key = turn
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
                self._turns.give_back(run, member, done)
                self._added.set()

    def _fits(self, key: Key) -> bool:
        return not self._is_slow(key) or self._slow < max(1, self._pool.workers - 1)

    def _is_slow(self, key: Key) -> bool:
        return key in self._cases and self._cases[key].slow

    async def _turn(self, key: Key) -> bool:
        """Score some of a submission's responses; returns whether there is nothing left to do."""
        wanted = await self._database.read(partial(exchanges.unverified_one, key=key))
        if wanted is None:
            return True
        rules = wanted.rules
        count = len(rules.prompts) * rules.responses_per_prompt
        case = self._cases.setdefault(key, Case(count, self._pool.seconds))
        work = partial(self._score, wanted, case)
        await to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._threads)
        if case.next() is not None:
            return False
        width = rules.responses_per_prompt
        verdicts = [case.correct[at : at + width] for at in range(0, count, width)]
        await self._database.write(
            lambda session: exchanges.verified(session, key, verdicts, case.given_up)
        )
        return True

    def _score(self, wanted: Unverified, case: Case) -> None:
        rules, until, slow = wanted.rules, time.monotonic() + TURN_SECONDS, case.slow
        problems, tokenizer = self._problems(wanted.public), self._tokenizer(wanted.tokenizer)
        groups = decode_responses(self._blobs.read(wanted.stored), rules)
        while (following := case.next()) is not None and case.slow == slow:
            position, seconds = following
            place, index = divmod(position, rules.responses_per_prompt)
            text = decode(tokenizer, groups[place][index].tokens)
            item = text, problems[rules.prompts[place]]
            case.note(self._pool.score(wanted.verifier, item, seconds))
            if time.monotonic() >= until:
                return

"""The coordinator's services, created and wired once, for the routes and the conductor."""

import asyncio
import os
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any

from anyio import CapacityLimiter

from pubswap_protocol.base.tokenizer import fewest_tokens, load_tokenizer
from pubswap_protocol.errors import DamagedBlob, InvalidSettings, VerifierFault
from pubswap_protocol.messages import SetKind
from pubswap_protocol.problems import Problem, PromptLimit, read_set
from pubswap_protocol.prompts import Prompt, question_of
from pubswap_protocol.sent_prompts import check_sent_prompts
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import AdapterFile, AdapterLayout, initial_file
from pubswap_protocol.verifiers import VerifierPool
from pubswap_protocol.verifiers.registry import check_judges, versions_named
from pubswap_protocol.verifiers.verifier import Verifier
from pubswap_server.conductor.leases import Leases
from pubswap_server.database.engine import Database
from pubswap_server.exchange.cache import ExchangeCache
from pubswap_server.exchange.verification import Verification
from pubswap_server.monitoring.metrics import Metrics
from pubswap_server.monitoring.readiness import (
    Readiness,
    conductor_turns,
    database_answers,
    disk_has_room,
    store_answers,
)
from pubswap_server.monitoring.webhook import Webhook
from pubswap_server.notifications import ChangeNotifier, SingleFlight
from pubswap_server.rate_limits import (
    MEMBER_BURST_SECONDS,
    Buckets,
    GoodSecrets,
    Rate,
    RequestLimits,
)
from pubswap_server.runs.auth import good_secrets, sha256
from pubswap_server.runs.progress.heartbeats import WriteBehind
from pubswap_server.runs.snapshot import read_snapshot
from pubswap_server.settings import ServerSettings, operator_token
from pubswap_server.storage.opening import make_storage

# Processes for verifiers that could hang, one of them reserved for quick responses. They start when
# needed.
VERIFIER_WORKERS = max(2, (os.cpu_count() or 1) // 4)
# Uploads fetched from a bucket and checked at a time. More are not faster: each then arrives in
# smaller pieces, which cost more.
CHECKS = 4


class Services:
    background: asyncio.Task[None]  # started last

    def __init__(
        self, settings: ServerSettings, metrics: Metrics, database: Database, replica: str
    ) -> None:
        storage = make_storage(settings)
        self.settings, self.metrics, self.database = settings, metrics, database
        self.operator_sha256 = sha256(operator_token(settings))
        self.incoming, self.blobs = storage.incoming, storage.blobs
        self.uploads, self.presigned = storage.uploads, storage.presigned
        self.changes = ChangeNotifier(settings.tick_seconds)
        self.heartbeats = WriteBehind(database)
        self.leases = Leases(replica, settings.lease_seconds)
        rate = settings.member_requests_per_second
        self.limits = RequestLimits(
            Buckets(Rate(rate, MEMBER_BURST_SECONDS * rate)),
            GoodSecrets(
                lambda: database.read(lambda session: good_secrets(session, self.operator_sha256))
            ),
        )
        self.readiness = Readiness(
            {
                "database": partial(database_answers, database),
                "blob store": partial(store_answers, storage.blobs),
                "disk": partial(disk_has_room, settings.data_dir, settings.spare_bytes),
                "conductor": partial(conductor_turns, self.changes, settings.tick_seconds),
            }
        )
        self.answers = ExchangeCache(self.blobs)
        self.finishing: set[str] = set()  # uploads that are being checked
        self.checks = CapacityLimiter(CHECKS)
        # Members of a run begin together, and a large set takes seconds and hundreds of megabytes.
        self.naming = CapacityLimiter(1)
        self.webhook = Webhook(settings.notify_url)
        self.snapshots = SingleFlight(
            lambda run: database.read(lambda session: read_snapshot(session, run))
        )
        self.problems = lru_cache(maxsize=16)(self._read_problems)
        self.tokenizer = lru_cache(maxsize=16)(self._read_tokenizer)
        self.versions_named = lru_cache(maxsize=64)(self._versions_named)
        self.topics = lru_cache(maxsize=64)(self._count_topics)
        self.verifiers = VerifierPool(VERIFIER_WORKERS, settings.verifier_seconds)
        self.verification = Verification(
            database, self.blobs, self.verifiers, self.problems, self.tokenizer
        )

    def check_lengths(self, run: RunSettings, tokenizer: str, sets: Mapping[SetKind, str]) -> None:
        """Raises InvalidProblems for a prompt that is too long even without a chat template.

        Also for one whose messages have no place beside the run's own, and for public ones that
        members could not read.
        """
        read = self.tokenizer(tokenizer)

        def count(prompt: Prompt) -> int:
            return fewest_tokens(read, question_of(run.conversation(prompt)))

        limit = PromptLimit(run.grpo.max_prompt_tokens, count)
        for kind, digest in sets.items():
            # Without public steps, nobody draws from the public set.
            if kind is SetKind.TEST or run.exchange:
                limit.check(self.problems(digest), f"The {kind} set")
        if run.exchange and (public := sets.get(SetKind.PUBLIC)):
            problems, per_step = self.problems(public), run.grpo.prompts_per_step
            check_sent_prompts(problems, per_step, f"The {SetKind.PUBLIC} set")

    def check_judged(self, verifier: Verifier, sets: Mapping[SetKind, str]) -> None:
        """Raises InvalidSettings or InvalidProblems unless the verifier works here, on these sets.

        `sets` are digests.
        """
        try:
            self.verifiers.prepare([verifier])
        except VerifierFault as error:
            raise InvalidSettings(error.detail) from None
        for kind, digest in sets.items():
            check_judges(self.problems(digest), verifier, f"The {kind} set")

    def initial_adapter(self, layout: AdapterLayout, settings: RunSettings) -> str:
        """Store and check the adapter that a run begins from; returns its digest.

        Raises InvalidSettings for one that was to be sent and is not stored.
        """
        sent = settings.initial_adapter
        digest = sent or self.blobs.write(initial_file(layout, settings.seed))[0]
        try:
            AdapterFile(self.blobs.path(digest), layout).check()
        except DamagedBlob:
            if sent is None:
                raise
            raise InvalidSettings(
                f"initial_adapter: {sent} is not stored here; send it with `pubswap run create "
                "--initial-adapter FOLDER`."
            ) from None
        return digest

    def _read_problems(self, digest: str) -> list[Problem]:
        return read_set(self.blobs.read(digest), extra="ignore")

    def _count_topics(self, digest: str) -> Counter[str]:
        """The number of problems of each topic of a set."""
        return Counter(problem.topic for problem in self.problems(digest))

    def _versions_named(self, digest: str, verifier: Verifier) -> str:
        """As the registry's, for a set; "" also while a library is not installed here."""
        try:
            return versions_named(self.problems(digest), verifier)
        except InvalidSettings:
            return ""

    def _read_tokenizer(self, digest: str) -> Any:
        return load_tokenizer(self.blobs.read(digest))

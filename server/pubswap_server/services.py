"""The coordinator's parts, for the routes and the conductor; made once, in `create_app`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from anyio import CapacityLimiter

from pubswap_protocol.messages import SetKind
from pubswap_protocol.problems import Problem, PromptLimit, parse_problems
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import AdapterFile, AdapterLayout, initial_file
from pubswap_protocol.tokenizer import fewest_tokens, load_tokenizer
from pubswap_protocol.verifiers import VerifierPool
from pubswap_server.conductor.attempts import Attempts
from pubswap_server.conductor.background import Background
from pubswap_server.conductor.leases import Leases
from pubswap_server.database.engine import Database
from pubswap_server.exchange import prompts
from pubswap_server.exchange.answers import Answers
from pubswap_server.exchange.verification import Verification
from pubswap_server.monitoring.metrics import Metrics
from pubswap_server.monitoring.readiness import Readiness
from pubswap_server.monitoring.webhook import Webhook
from pubswap_server.notifications import ChangeNotifier, SingleFlight
from pubswap_server.rate_limits import RequestLimits
from pubswap_server.runs.heartbeats import WriteBehind
from pubswap_server.runs.snapshot import RunSnapshot, read_snapshot
from pubswap_server.settings import ServerSettings
from pubswap_server.storage.spool import Spool
from pubswap_server.storage.store import BlobStore, UploadStore

if TYPE_CHECKING:
    from pubswap_server.storage.presigned import Presigned


# Uploads that are fetched from a bucket and checked at a time. More come no faster, each in pieces
# that are smaller and cost more.
CHECKS = 4


@dataclass
class Services:
    """The coordinator's parts."""

    settings: ServerSettings
    operator_sha256: str
    database: Database
    incoming: Spool
    blobs: BlobStore
    uploads: UploadStore
    presigned: "Presigned | None"
    verifiers: VerifierPool
    metrics: Metrics
    changes: ChangeNotifier
    heartbeats: WriteBehind
    leases: Leases
    limits: RequestLimits
    readiness: Readiness
    background: Background = field(init=False)  # begun when all else is there

    def __post_init__(self) -> None:
        self.answers = Answers(self.blobs)
        self.attempts = Attempts(self.settings.tick_seconds)
        self.finishing: set[str] = set()  # uploads that are being checked
        self.checks = CapacityLimiter(CHECKS)
        self.webhook = Webhook(self.settings.notify_url)
        self.past_counts = prompts.PastCounts()
        self.snapshots = SingleFlight(self._read_snapshot)
        self.problems = lru_cache(maxsize=16)(self._read_problems)
        self._tokenizer = lru_cache(maxsize=16)(self._read_tokenizer)
        self.verification = Verification(
            self.database, self.blobs, self.verifiers, self.problems, self._tokenizer
        )

    async def _read_snapshot(self, run: str) -> RunSnapshot:
        return await self.database.read(lambda session: read_snapshot(session, run))

    def check_lengths(self, run: RunSettings, tokenizer: str, sets: Mapping[SetKind, str]) -> None:
        """Raises InvalidProblems for a prompt that is too long even without a chat template."""
        count = partial(fewest_tokens, self._tokenizer(tokenizer))
        limit = PromptLimit(run.grpo.max_prompt_tokens, count)
        for kind, digest in sets.items():
            # Where no step is public, nobody draws from the public set.
            if kind is SetKind.TEST or run.method == "pubswap":
                limit.check(self.problems(digest), f"The {kind} set")

    def initial_adapter(self, layout: AdapterLayout, seed: int) -> str:
        """The digest of the adapter that a run begins from, which is stored and checked."""
        digest = self.blobs.write(initial_file(layout, seed))[0]
        AdapterFile(self.blobs.path(digest), layout).check()
        return digest

    def _read_problems(self, digest: str) -> list[Problem]:
        return parse_problems(self.blobs.read(digest).decode("utf-8"))

    def _read_tokenizer(self, digest: str) -> Any:
        return load_tokenizer(self.blobs.read(digest))

"""The JSON bodies of the HTTP interface.

The coordinator refuses unknown fields, and clients ignore them, so that a message can grow.
"""

from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import AwareDatetime, Field, model_validator

from pubswap_protocol import digests
from pubswap_protocol.bounds import (
    MAX_COUNT,
    MAX_DONORS_TOLD,
    MAX_MEASURED,
    MAX_SECONDS,
    MAX_STEPS_TOLD,
    MAX_TOPICS,
    Count,
    Id,
    Label,
    Measured,
    Name,
    Norm,
    Number,
    Positive,
    Seconds,
    Several,
    Share,
    Strict,
    Topic,
    Url,
    Word,
    Words,
)
from pubswap_protocol.model import ModelCard, ModelDigests
from pubswap_protocol.problems import Problem
from pubswap_protocol.settings import Clients, RunSettings
from pubswap_protocol.tensors.safetensors_header import MAX_TENSORS

Digest = Annotated[str, Field(pattern=digests.PATTERN)]
Fingerprint = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Topics = Annotated[dict[Topic, Share], Field(max_length=MAX_TOPICS)]
Bytes = Annotated[int, Field(gt=0, le=MAX_COUNT, strict=True)]
AwayCode = Annotated[str, Field(pattern=r"^[a-z_]{1,40}$")]  # open: a later client may have more
Printable = Annotated[str, Field(pattern=r"^[ -~]{1,400}$")]  # on terminals, too


class Version(Strict):
    """The answer to the handshake."""

    software: Label
    protocol: Label


class RunState(StrEnum):
    """Where a run is; see the server's state machine for what leads where."""

    CREATED = "created"
    OPEN = "open"
    TRAINING = "training"
    EXCHANGING = "exchanging"
    AGGREGATING = "aggregating"
    FINISHED = "finished"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether nothing leads on from there."""
        return self in (RunState.FINISHED, RunState.CANCELLED)


class Role(StrEnum):
    """What a member does in a run."""

    CLIENT = "client"
    EVALUATOR = "evaluator"


class SetKind(StrEnum):
    """The problem sets the coordinator holds."""

    PUBLIC = "public"
    TEST = "test"


class CreateRun(Strict):
    """A new run: its name, its settings, and its base model's card."""

    name: Name
    settings: RunSettings
    model: ModelCard

    @model_validator(mode="after")
    def _fits(self) -> Self:
        tensors = len(self.model.layout.tensors)
        if self.settings.wire.precision == "int8":
            tensors *= 2  # each with its scales
        if tensors > MAX_TENSORS:
            raise ValueError(
                f"an update would be a file of {tensors} tensors, of which {MAX_TENSORS} are "
                "taken; choose fewer lora.target_modules, or another wire.precision than int8"
            )
        return self


class Traffic(Strict):
    """Bytes of adapters and of responses, as seen by the organisations (up = sent)."""

    adapters_up: Count = 0
    adapters_down: Count = 0
    responses_up: Count = 0
    responses_down: Count = 0

    @property
    def up(self) -> int:
        """All bytes sent by clients."""
        return self.adapters_up + self.responses_up

    @property
    def down(self) -> int:
        """All bytes received by clients."""
        return self.adapters_down + self.responses_down


class Drift(Strict):
    """How far the clients' factors moved apart in a round, as L2 norms over all A and B.

    Of the adapters as they were handed in, each after the local steps that its member made. Of
    more than 32 clients, it is that of 32 drawn for the round.
    """

    pairwise: Norm = Field(description="Mean of |theta_n - theta_m| over pairs of clients.")
    from_mean: Norm = Field(description="Mean of |theta_n - mean theta|.")


class Evaluation(Strict):
    """pass@1 of a round's global adapter on the test set; round 0 is the base model."""

    pass_at_1: Share
    by_topic: Topics
    problems: Positive
    seconds: Seconds


class SwapSummary(Strict):
    """What one exchange did."""

    swap: Number
    clients: Number
    replaced: Count = Field(description="Responses replaced, over all clients and prompts.")
    replaced_share: dict[Name, Share] = Field(description="alpha = replaced / (b K), by client.")
    correct_share: dict[Name, Share] = Field(description="Correct share of own responses.")


class RoundMeans(Strict):
    """Means over a round's updates that count, and over its exchanges; of epsilon the largest."""

    steps: Measured = Field(default=None, description="Local steps that an update was made of.")
    reward: Measured = None
    loss: Measured = None
    kl: Measured = None
    clip_share: Measured = None
    zero_variance_share: Measured = None
    response_tokens: Measured = None
    seconds: Measured = Field(default=None, description="Of an organisation's local training.")
    sampling_seconds: Measured = None
    waiting_seconds: Measured = None
    transfer_seconds: Measured = None
    replaced_share: Measured = None
    epsilon: Measured = Field(
        default=None, description="The most that a member has spent in the run so far."
    )


class RoundSummary(Strict):
    """One round: its adapter (after aggregation), its evaluation, its exchanges."""

    round: Number
    adapter: Digest | None = None
    rollbacks: Number | None = Field(
        default=None, description="How often the run had gone back when the round was begun."
    )
    updates: Number = 0
    means: RoundMeans | None = None
    drift: Drift | None = None
    evaluation: Evaluation | None = None
    swaps: Several[SwapSummary] = Field(default=[])
    traffic: Traffic = Traffic()


class Progress(Strict):
    """A heartbeat: where a member is, in numbers only."""

    round: Number
    step: Number
    steps: Number
    reward: Measured = None
    loss: Measured = None
    kl: Measured = None
    tokens_per_second: Measured = None
    memory_bytes: Count | None = Field(
        default=None, description="The GPU's peak in this step, or what the process holds."
    )


class Away(Strict):
    """Why an organisation's own policy keeps it from taking part, until its next hello."""

    code: AwayCode = Field(description="Stable, such as `outside_hours`; docs/organisation.md.")
    detail: Printable = Field(description="The reason in words, for the operator.")


class Sampling(Strict):
    """How receivers judge the responses that a member has donated."""

    doubting: Number = Field(description="Receivers whose last verdict is: not sampled.")
    judging: Number = Field(description="Receivers that have passed a verdict.")
    excluded: bool = Field(description="Its responses are given to nobody any more.")


class MemberView(Strict):
    """A member as the operator sees it."""

    name: Name
    role: Role
    active: bool = Field(description="False once revoked.")
    suspended: bool = Field(default=False, description="Until it is reinstated.")
    away: Away | None = Field(default=None, description="By its own policy; nobody waits for it.")
    joining: bool = Field(
        default=False, description="In the next round and not in the one under way."
    )
    unverified: bool = Field(
        default=False, description="Its last responses came without seeds: nobody can check them."
    )
    certificate: Fingerprint | None = Field(
        default=None, description="SHA-256 of the client certificate that its token is bound to."
    )
    last_seen: AwareDatetime | None = Field(default=None, description="Its last request's moment.")
    unseen_seconds: Seconds | None = Field(
        default=None, description="Seconds since then, on the coordinator's clock."
    )
    progress: Progress | None = None
    traffic: Traffic = Traffic()
    sampling: Sampling | None = Field(
        default=None, description="Of a client whose responses were checked."
    )


class RoundList(Strict):
    """Some of a run's rounds, in order; an empty page is behind the last."""

    rounds: Several[RoundSummary]


class Score(Strict):
    """pass@1 after a round."""

    round: Number
    pass_at_1: Share


class RunView(Strict):
    """A run as its members and the operator see it."""

    id: Id
    name: Name
    state: RunState
    paused: bool
    round: Number = Field(description="The round under way; 0 before the start.")
    waiting_for: Words | None = Field(
        default=None, description="What the operator must do before the run can go on, if anything."
    )
    settings: RunSettings
    requires: Several[Label] = Field(
        default=[],
        description="The settings that a client must know to take part, by names such as "
        "`swap.period`; any other that it does not know it ignores.",
    )
    verifier_version: Label | None = Field(
        default=None,
        description="The run's verifier with the versions of our rules and of its library, such as "
        "`math@2+0.9.0`: members need the same.",
    )
    model: ModelCard
    bucket: Url | None = Field(
        default=None,
        description="What the addresses begin with, before a slash, under which members reach the "
        "bucket themselves.",
    )
    created_at: AwareDatetime
    latest: Score | None = Field(default=None, description="Of the last round evaluated so far.")
    best: Score | None = None
    members: Several[MemberView] = Field(
        default=[], description="Of one run, and shown to the operator only."
    )


class WholeRun(RunView):
    """A run with all its rounds, as a client puts it together from their pages."""

    rounds: Several[RoundSummary] = Field(default=[])


class RunList(Strict):
    """Some of the operator's runs, newest first; an empty page is behind the last."""

    runs: Several[RunView]


InviteSeconds = Annotated[int, Field(gt=0, le=MAX_SECONDS, strict=True)]
_A_WEEK = 7 * 24 * 3600


class ChangeRun(Strict):
    """Settings for a run that has not been started."""

    clients: Clients


class Rollback(Strict):
    """Go back to a round's adapter, and on from there with the round after it."""

    to: Number


class CreateInvite(Strict):
    """Ask for a one-time invite for a member of this name."""

    name: Name
    role: Role = Role.CLIENT
    expires_in_seconds: InviteSeconds = _A_WEEK


class Reissue(Strict):
    """Ask for a one-time invite for a member that has enrolled already."""

    expires_in_seconds: InviteSeconds = _A_WEEK


class Invite(Strict):
    """A one-time invite; it is shown once."""

    invite: Label
    name: Name
    role: Role
    expires_at: AwareDatetime


class CreateViewer(Strict):
    """Somebody who may look at the dashboard and change nothing."""

    name: Name


class Viewer(CreateViewer):
    """A viewer, as all may be listed."""

    created_at: AwareDatetime


class ViewerToken(Viewer):
    """A new viewer's token; it is shown once."""

    token: Label


class ViewerList(Strict):
    """All viewers, by name."""

    viewers: Several[Viewer]


class BindCertificate(Strict):
    """The client certificate that a member's token is good with from now on."""

    sha256: Fingerprint | None = Field(description="SHA-256 of the DER bytes; null for any.")


class Enroll(Strict):
    """Exchange an invite for a token."""

    invite: Word


class Membership(Strict):
    """A member's long-lived token; it is shown once, and only its SHA-256 is stored."""

    run: Id
    run_name: Name
    name: Name
    role: Role
    token: Label


class Hello(ModelDigests):
    """A member's base model and verifier, before any work."""

    verifier_version: Word = Field(description="Must be the run's.")


class TaskKind(StrEnum):
    """What a member is to do now."""

    WAIT = "wait"
    TRAIN = "train"
    EVALUATE = "evaluate"
    FINISHED = "finished"


class Task(Strict):
    """What to do now. `adapter` is where to start from, or what to evaluate.

    The base model is the run's with the products of all `residuals` added, in their order.
    """

    kind: TaskKind
    state: RunState
    round: Number = 0
    adapter: Digest | None = None
    residuals: Several[Digest] = Field(default=[])
    rollbacks: Number = Field(
        default=0, description="How often the run went back: a round of another count is another."
    )
    waits_for: Words | None = Field(
        default=None, description="What a member that is to wait waits for, in words."
    )


Evidence = Annotated[float, Field(ge=-MAX_MEASURED, le=MAX_MEASURED, strict=True)]


class DonorEvidence(Strict):
    """What a receiver found in a round's responses of one donor, see docs/security.md."""

    number: Count = Field(description="The donor's for this receiver, as it came with responses.")
    responses: Number
    other_noise: Evidence = Field(
        description="That they were not drawn by their noise, in nats; below 0 if they were."
    )
    other_policy: Evidence = Field(
        description="That another policy or temperature drew them by it, in nats."
    )


class UpdateMetrics(Strict):
    """What an organisation reports of a round's local training: counters, nothing else."""

    examples: Annotated[int, Field(gt=0, le=10**9, strict=True)] = Field(
        description="The size of the private set, for weighting."
    )
    steps: Number
    reward: Measured = Field(default=None, description="Mean over own responses.")
    loss: Measured = None
    kl: Measured = None
    clip_share: Measured = None
    zero_variance_share: Measured = None
    response_tokens: Measured = None
    seconds: Seconds | None = Field(default=None, description="Of sampling and updating.")
    sampling_seconds: Seconds | None = Field(
        default=None, description="As far as nothing was updated meanwhile."
    )
    waiting_seconds: Seconds | None = Field(
        default=None, description="For other organisations, in public steps."
    )
    transfer_seconds: Seconds | None = Field(default=None, description="Of adapters, both ways.")
    step_rewards: Several[Measured] = Field(
        default=[],
        max_length=MAX_STEPS_TOLD,
        description="Of the round's first steps, in the order of the updates.",
    )
    epsilon: Norm | None = Field(
        default=None,
        description="Of record-level differential privacy: what the member's training has spent in "
        "the run so far, where the run has privacy.epsilon.",
    )
    improvement: Annotated[float, Field(ge=-1, le=1, strict=True)] | None = Field(
        default=None,
        description="Of pass@1 on own held-out problems in the round, where the run has "
        "aggregation.weights = 'improvement'.",
    )
    donors: Several[DonorEvidence] = Field(default=[], max_length=MAX_DONORS_TOLD)


class SubmitUpdate(Strict):
    """The adapter trained in a round, already sent as a blob."""

    adapter: Digest
    metrics: UpdateMetrics


class ReceiptStatus(StrEnum):
    """What became of a submission."""

    ACCEPTED = "accepted"
    LATE = "late, unused"


class Receipt(Strict):
    """What was stored; sent again, the same submission gets the same receipt."""

    status: ReceiptStatus
    digest: Digest = Field(
        description="Of an update the adapter's; of responses the BLAKE3 of the file sent."
    )


class OpenUpload(Strict):
    """Announce a blob before its first byte; the room for it is reserved."""

    digest: Digest
    size: Bytes = Field(description="Bytes of the whole blob.")


class UploadPart(Strict):
    """A part that goes straight to the bucket: a PUT of its bytes to the URL, without a token."""

    first: Count = Field(description="The first byte's position.")
    size: Bytes
    url: Url


class UploadSession(Strict):
    """An upload and how far it has come; it goes on from `offset`."""

    upload: Id | None = Field(description="Null when the blob is already stored.")
    digest: Digest
    size: Bytes = Field(description="Bytes of the whole blob.")
    offset: Count = Field(description="Bytes already here, also after a cut connection.")
    stored: bool = Field(description="This member has already sent the blob; send nothing.")
    chunk_bytes: Bytes = Field(description="Bytes of the first PATCH, and of one after a cut.")
    largest_chunk_bytes: Bytes = Field(description="The most bytes of one PATCH.")
    expires_at: AwareDatetime | None = Field(description="Null when the blob is already stored.")
    parts: Several[UploadPart] = Field(
        default=[],
        description="The next parts, if they were asked for and there is a bucket: in order, for "
        "some minutes. For those behind them, or new URLs, open the upload again.",
    )


class BlobReceipt(Strict):
    """A stored blob."""

    digest: Digest
    size: Count


class PublicPrompt(Strict):
    """A public problem and its position in the public set."""

    index: Number
    problem: Problem


class SwapPrompts(Strict):
    """The prompts of a public step, the same for every client, in the order of the groups."""

    round: Number
    swap: Number
    prompts: Several[PublicPrompt]
    sampling_seed: Count | None = Field(
        default=None,
        description="Of the noise that this client is to draw its responses by, if receivers are "
        "to check that.",
    )


class Event(Strict):
    """One line of a run's append-only log."""

    id: Count
    at: AwareDatetime
    kind: Label
    details: dict[str, Any]


class Events(Strict):
    """A page of a run's log."""

    events: Several[Event]


class SetReceipt(Strict):
    """A stored problem set."""

    kind: SetKind
    problems: Number
    digest: Digest


class MemberList(Strict):
    """The members of a run."""

    members: Several[MemberView]

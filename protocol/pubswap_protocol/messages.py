"""The JSON bodies of the HTTP interface.

The coordinator refuses unknown fields, and clients ignore them, so that a message can grow.
"""

from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import AwareDatetime, Field, model_validator

from pubswap_protocol import digests
from pubswap_protocol.bounds import (
    MAX_COUNT,
    MAX_MEASURED,
    MAX_PARTS,
    MAX_REPORTED_DONORS,
    MAX_REPORTED_STEPS,
    MAX_SECONDS,
    MAX_SHOWN,
    MAX_TERMS,
    MAX_TOPICS,
    Clients,
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
    ShownText,
    Strict,
    Topic,
    Url,
    Word,
    Words,
)
from pubswap_protocol.model import ModelCard, ModelDigests
from pubswap_protocol.problems import Problem
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.safetensors_header import MAX_HEADER_BYTES, MAX_TENSORS

Digest = Annotated[str, Field(pattern=digests.PATTERN)]
Topics = Annotated[dict[Topic, Share], Field(max_length=MAX_TOPICS)]
Bytes = Annotated[int, Field(gt=0, le=MAX_COUNT, strict=True)]
AwayCode = Annotated[str, Field(pattern=r"^[a-z_]{1,40}$")]  # open: later clients may add codes
Printable = Annotated[str, Field(pattern=r"^[ -~]{1,400}$")]  # also shown on terminals


class Version(Strict):
    """The answer to the handshake."""

    software: Label
    protocol: Label


class RunState(StrEnum):
    """The state of a run; the server's state machine defines the transitions."""

    CREATED = "created"
    OPEN = "open"
    TRAINING = "training"
    EXCHANGING = "exchanging"
    AGGREGATING = "aggregating"
    FINISHED = "finished"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether this state is final."""
        return self in (RunState.FINISHED, RunState.CANCELLED)


class Role(StrEnum):
    """A member's role in a run."""

    CLIENT = "client"
    EVALUATOR = "evaluator"


class SetKind(StrEnum):
    """The problem sets that the coordinator stores."""

    PUBLIC = "public"
    TEST = "test"


class CreateRun(Strict):
    """A new run: its name, its settings, and its base model's card."""

    name: Name
    settings: RunSettings
    model: ModelCard

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (tensors := len(self.model.layout.tensors)) > MAX_TENSORS:
            raise ValueError(
                f"an update would be a file of {tensors} tensors, and at most {MAX_TENSORS} are "
                "allowed; choose fewer lora.target_modules"
            )
        # Another precision's header may have a byte more for each tensor.
        if (size := len(self.model.layout.header) + tensors) > MAX_HEADER_BYTES:
            raise ValueError(
                f"an update's header would have {size:,} bytes, and at most {MAX_HEADER_BYTES:,} "
                "are allowed; choose fewer lora.target_modules"
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
    """Distances between the clients' factors after a round, as L2 norms over all A and B.

    Computed from the submitted adapters, each after as many local steps as its member made. With
    more than 16 clients, computed for 16 that are drawn for the round.
    """

    pairwise: Norm = Field(description="Mean of |theta_n - theta_m| over pairs of clients.")
    from_mean: Norm = Field(description="Mean of |theta_n - mean theta|.")


class Evaluation(Strict):
    """pass@1 of a round's global adapter on the test set; round 0 is the base model."""

    pass_at_1: Share
    by_topic: Topics
    problems: Positive
    seconds: Seconds
    score: Share | None = Field(
        default=None, description="Mean score, if some response is partly right."
    )
    parts: dict[Label, Share] = Field(
        default={},
        max_length=MAX_PARTS,
        description="Mean scores of the parts of a weighted verifier.",
    )
    warning: Label | None = Field(
        default=None,
        description="What nearly all right answers have in common that answers should not.",
    )

    @property
    def figures(self) -> str:
        """pass@1, and the mean scores beside it if there are any."""
        shown = [f"{self.pass_at_1:.3f}"]
        shown += [f"score {self.score:.3f}"] if self.score is not None else []
        return ", ".join([*shown, *(f"{part} {mean:.3f}" for part, mean in self.parts.items())])


class JudgedResponse(Strict):
    """A response to a test problem and its verdict; long texts are cut in the middle."""

    topic: Topic
    prompt: ShownText
    answer: ShownText = Field(description="The reference answer.")
    response: ShownText
    right: Annotated[bool, Field(strict=True)]
    score: Share | None = Field(default=None, description="Its score, if it is partly right.")


class FullEvaluation(Evaluation):
    """An evaluation with some responses of each topic, which only the operator may read."""

    responses: Several[JudgedResponse] = Field(default=[], max_length=MAX_SHOWN)


class PublicStepSummary(Strict):
    """The outcome of one exchange."""

    public_step: Number
    clients: Number
    replaced: Count = Field(description="Responses replaced, over all clients and prompts.")
    replaced_share: dict[Name, Share] = Field(description="alpha = replaced / (b K), by client.")
    correct_share: dict[Name, Share] = Field(description="Correct share of own responses.")


class RoundMeans(Strict):
    """Means over a round's counted updates and its exchanges; for epsilon, the maximum."""

    steps: Measured = Field(default=None, description="Local steps in an update.")
    reward: Measured = None
    loss: Measured = None
    kl: Measured = None
    clip_share: Measured = None
    zero_variance_share: Measured = None
    response_tokens: Measured = None
    seconds: Measured = Field(default=None, description="Time of a client's local training.")
    sampling_seconds: Measured = None
    waiting_seconds: Measured = None
    transfer_seconds: Measured = None
    replaced_share: Measured = None
    epsilon: Measured = Field(
        default=None, description="The largest epsilon that a member has spent in the run so far."
    )


class RoundSummary(Strict):
    """One round: its adapter (after aggregation), its evaluation, its exchanges."""

    round: Number
    adapter: Digest | None = None
    rollbacks: Number | None = Field(
        default=None, description="Number of rollbacks of the run before the round began."
    )
    updates: Number = 0
    means: RoundMeans | None = None
    drift: Drift | None = None
    evaluation: Evaluation | None = None
    public_steps: Several[PublicStepSummary] = Field(default=[])
    traffic: Traffic = Traffic()


class Progress(Strict):
    """A heartbeat: a member's progress, in numbers only."""

    round: Number
    step: Number
    steps: Number
    reward: Measured = None
    loss: Measured = None
    kl: Measured = None
    response_tokens: Measured = Field(default=None, description="Mean length of the responses.")
    tokens_per_second: Measured = None
    memory_bytes: Count | None = Field(
        default=None, description="Peak GPU memory in this step, or else the process's memory."
    )
    holds: Number | None = Field(
        default=None,
        description="Held while the run is paused: the responses to the public step with this "
        "number; 0 for the round's update.",
    )

    @property
    def held(self) -> str | None:
        """What the member holds while the run is paused, in words; None if it holds nothing."""
        return None if self.holds is None else f"holds {held_text(self.holds)}"


class StepPoint(Strict):
    """A member's figures of one step, as its heartbeat gave them."""

    member: Name
    round: Number
    step: Number
    at: AwareDatetime = Field(description="Arrival of the heartbeat.")
    reward: Measured = None
    loss: Measured = None
    kl: Measured = None
    response_tokens: Measured = None
    tokens_per_second: Measured = None


class StepList(Strict):
    """A page of a run's steps, by member, round and step; an empty page follows the last one."""

    steps: Several[StepPoint]


def held_text(holds: int) -> str:
    """What `Progress.holds` stands for, in words."""
    return f"its responses to public step {holds}" if holds else "its update"


class Away(Strict):
    """Why an organisation's own policy keeps it from taking part, until its next hello."""

    code: AwayCode = Field(description="Stable, such as `not_approved`; docs/organisation.md.")
    detail: Printable = Field(description="The reason in words, for the operator.")


class Sampling(Strict):
    """Verdicts of receivers on the responses that a member has donated."""

    doubting: Number = Field(description="Receivers whose last verdict is 'not sampled'.")
    judging: Number = Field(description="Receivers that have reached a verdict.")
    excluded: bool = Field(description="Its responses are no longer donated.")


class MemberView(Strict):
    """A member as the operator sees it."""

    name: Name
    role: Role
    active: bool = Field(description="False once revoked.")
    suspended: bool = Field(default=False, description="Until it is reinstated.")
    away: Away | None = Field(
        default=None, description="Away by its own policy; the run does not wait for it."
    )
    accepted: bool = Field(
        default=True, description="Its daemon has started, with the run's base model and verifier."
    )
    joining: bool = Field(
        default=False, description="Takes part from the next round on, not in the current one."
    )
    unverified: bool = Field(
        default=False, description="Its last responses had no seeds, so they cannot be checked."
    )
    last_seen: AwareDatetime | None = Field(default=None, description="Time of its last request.")
    unseen_seconds: Seconds | None = Field(
        default=None, description="Seconds since then, on the coordinator's clock."
    )
    progress: Progress | None = None
    traffic: Traffic = Traffic()
    sampling: Sampling | None = Field(
        default=None, description="For a client whose responses were checked."
    )


class OwnLink(Strict):
    """A link by which a browser sees the run as this member may see it."""

    path: Url = Field(description="Relative to the coordinator's address; works once.")
    seconds: Seconds = Field(description="How long it can be used.")


class RoundList(Strict):
    """A page of a run's rounds, in order; an empty page follows the last one."""

    rounds: Several[RoundSummary]


class Score(Strict):
    """pass@1 after a round."""

    round: Number
    pass_at_1: Share
    warning: Label | None = Field(default=None, description="The evaluation's warning.")
    problems: Positive | None = Field(default=None, description="Test problems of pass@1.")


class RunView(Strict):
    """A run as seen by its members and the operator."""

    id: Id
    name: Name
    state: RunState
    paused: bool
    round: Number = Field(description="The current round; 0 before the start.")
    waiting_for: Words | None = Field(
        default=None, description="What the operator must do before the run can continue."
    )
    activity: Words | None = Field(
        default=None,
        description="What the run does, and for whom it waits until when, in words. Only for a "
        "single run, and only for the operator.",
    )
    left_seconds: Seconds | None = Field(
        default=None,
        description="Estimated seconds until a single run's last round ends, from its last rounds "
        "or, before the first has ended, from the steps that are made.",
    )
    settings: RunSettings
    requires: Several[Label] = Field(
        default=[],
        description="Names of the settings that a client must know to take part, such as "
        "`method.period`; it ignores any other unknown setting.",
    )
    verifier_version: Label | None = Field(
        default=None,
        description="The run's verifier with the versions of PubSwap's rules and of its library, "
        "such as `math@2+0.9.0`; members need the same.",
    )
    model: ModelCard
    terms: Annotated[str, Field(max_length=MAX_TERMS)] | None = Field(
        default=None,
        description="What members approve, and take their settings and model from: canonical JSON "
        "that is never written anew. Only for a single run, and only for its members; null until "
        "the run is open.",
    )
    bucket: Url | None = Field(
        default=None,
        description="Start of the URLs, up to a slash, at which members reach the bucket directly.",
    )
    created_at: AwareDatetime
    latest: Score | None = Field(default=None, description="Score of the last evaluated round.")
    best: Score | None = None
    members: Several[MemberView] = Field(
        default=[], description="Only for a single run, and only for the operator."
    )


class WholeRun(RunView):
    """A run with all its rounds, assembled by a client from the pages."""

    rounds: Several[RoundSummary] = Field(default=[])


class RunList(Strict):
    """A page of the operator's runs, newest first; an empty page follows the last one."""

    runs: Several[RunView]


InviteSeconds = Annotated[int, Field(gt=0, le=MAX_SECONDS, strict=True)]
_A_WEEK = 7 * 24 * 3600


class ChangeRun(Strict):
    """Settings for a run that has not been started."""

    clients: Clients


class Rollback(Strict):
    """Return to a round's adapter, and continue with the round after it."""

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
    """A person with read-only access to the dashboard."""

    name: Name


class Viewer(CreateViewer):
    """A viewer in the list of viewers."""

    created_at: AwareDatetime


class ViewerToken(Viewer):
    """A new viewer's token; it is shown once."""

    token: Label


class ViewerList(Strict):
    """All viewers, by name."""

    viewers: Several[Viewer]


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
    """A member's base model and verifier, sent before any work."""

    verifier_version: Word = Field(description="Must be the run's.")


class TaskKind(StrEnum):
    """The kind of a member's current task."""

    WAIT = "wait"
    TRAIN = "train"
    EVALUATE = "evaluate"
    FINISHED = "finished"


class Task(Strict):
    """A member's current task. `adapter` is the one to start from, or to evaluate."""

    kind: TaskKind
    state: RunState
    round: Number = 0
    adapter: Digest | None = None
    rollbacks: Number = Field(
        default=0, description="Number of rollbacks; it tells repetitions of a round apart."
    )
    waits_for: Words | None = Field(
        default=None, description="For kind `wait`: what the member waits for, in words."
    )
    paused: bool = Field(
        default=False,
        description="The operator has paused the run: hold responses and updates until it is "
        "resumed.",
    )


Evidence = Annotated[float, Field(ge=-MAX_MEASURED, le=MAX_MEASURED, strict=True)]


class DonorEvidence(Strict):
    """A receiver's evidence on one donor's responses in a round; see docs/security.md."""

    number: Count = Field(
        description="The donor's number for this receiver, as it came with the responses."
    )
    responses: Number
    other_noise: Evidence = Field(
        description="That they were not drawn with their noise, in nats; below 0 if they were."
    )


class UpdateMetrics(Strict):
    """An organisation's report on a round's local training: numbers, nothing else."""

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
    seconds: Seconds | None = Field(default=None, description="Time for sampling and updating.")
    sampling_seconds: Seconds | None = Field(
        default=None, description="Time for sampling while no update was running."
    )
    waiting_seconds: Seconds | None = Field(
        default=None, description="Time waiting for other organisations in public steps."
    )
    transfer_seconds: Seconds | None = Field(
        default=None, description="Time for transferring adapters, both ways."
    )
    exchanges_refused: Number = Field(
        default=0,
        description="Public steps in which the coordinator's answer was malformed, so that the "
        "member trained on its own responses.",
    )
    step_rewards: Several[Measured] = Field(
        default=[],
        max_length=MAX_REPORTED_STEPS,
        description="Rewards of the round's first steps, in the order of the updates.",
    )
    epsilon: Norm | None = Field(
        default=None,
        description="Epsilon of record-level differential privacy that the member's training has "
        "spent in the run so far, if the run has privacy.epsilon.",
    )
    donors: Several[DonorEvidence] = Field(default=[], max_length=MAX_REPORTED_DONORS)


class SubmitUpdate(Strict):
    """The adapter trained in a round, already uploaded as a blob."""

    adapter: Digest
    metrics: UpdateMetrics


class ReceiptStatus(StrEnum):
    """The outcome of a submission."""

    ACCEPTED = "accepted"
    LATE = "late, unused"


class Receipt(Strict):
    """A receipt for a submission; repeating the submission returns the same receipt."""

    status: ReceiptStatus
    digest: Digest = Field(
        description="For an update, the adapter's; for responses, the BLAKE3 of the file sent."
    )


class OpenUpload(Strict):
    """Announce a blob before its first byte, which reserves space for it."""

    digest: Digest
    size: Bytes = Field(description="Bytes of the whole blob.")


class UploadPart(Strict):
    """A part to send straight to the bucket: PUT its bytes to the URL, without a token."""

    first: Count = Field(description="The first byte's position.")
    size: Bytes
    url: Url


class UploadSession(Strict):
    """An upload and its progress; continue it at `offset`."""

    upload: Id | None = Field(description="Null when the blob is already stored.")
    digest: Digest
    size: Bytes = Field(description="Bytes of the whole blob.")
    offset: Count = Field(description="Bytes already received, also after a broken connection.")
    stored: bool = Field(description="This member has already sent the blob; send nothing.")
    chunk_bytes: Bytes = Field(
        description="Bytes of the first PATCH, and of the first after a broken connection."
    )
    largest_chunk_bytes: Bytes = Field(description="Maximum bytes of one PATCH.")
    expires_at: AwareDatetime | None = Field(description="Null when the blob is already stored.")
    parts: Several[UploadPart] = Field(
        default=[],
        description="The next parts in order, if requested and if there is a bucket. Their URLs "
        "are valid for some minutes; open the upload again for later parts or new URLs.",
    )


class BlobReceipt(Strict):
    """A stored blob."""

    digest: Digest
    size: Count


class PublicPrompt(Strict):
    """A public problem and its position in the public set."""

    index: Number
    problem: Problem


class PublicStepPrompts(Strict):
    """The prompts of a public step, the same for every client, in the order of the groups."""

    round: Number
    public_step: Number
    prompts: Several[PublicPrompt]
    sampling_seed: Count | None = Field(
        default=None,
        description="Seed of the noise with which this client must draw its responses, if "
        "receivers check that.",
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

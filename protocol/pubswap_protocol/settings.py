"""A run's settings: the whole algorithm, with the paper's values as defaults."""

import math
from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, StrictBool, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from pubswap_protocol.bounds import (
    MAX_COUNT,
    MAX_FACTOR,
    SMALLEST,
    Deadline,
    Decay,
    Factor,
    PositiveFactor,
    Share,
    Strict,
    Word,
)
from pubswap_protocol.digests import PATTERN
from pubswap_protocol.tensors.safetensors_header import MAX_TENSORS

TemplateOptions = Annotated[
    dict[
        Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=64)],
        StrictBool | Annotated[int, Field(ge=-MAX_COUNT, le=MAX_COUNT, strict=True)] | Word,
    ],
    Field(max_length=16),
]
# Parameters of transformers' apply_chat_template that are not variables of the template.
NO_TEMPLATE_OPTIONS = {
    *("conversation", "messages", "tools", "documents", "chat_template", "add_generation_prompt"),
    *("continue_final_message", "tokenize", "padding", "truncation", "max_length"),
    *("return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs"),
    "sanitize_control_tokens",
}

PositiveShare = Annotated[float, Field(ge=SMALLEST, le=1, strict=True)]
Modules = Annotated[tuple[Word, ...], Field(max_length=MAX_TENSORS)]
# Far above any sensible value, and far below overflow.
Rounds = Annotated[int, Field(gt=0, le=10**6, strict=True)]
Clients = Annotated[int, Field(gt=0, le=10**5, strict=True)]
Group = Annotated[int, Field(gt=0, le=1 << 16, strict=True)]
Tokens = Annotated[int, Field(gt=0, le=1 << 24, strict=True)]
Precision = Literal["float32", "bfloat16"]
# Beyond these, accounting for differential privacy takes minutes and gigabytes, or fails.
MAX_PRIVATE_STEPS, MAX_PRIVATE_EPOCHS = 10**6, 256
MAX_DRAWS = 64  # per step; if a few further draws do not help, more rarely do


def _over_clients(name: str, clients: int) -> str:
    return f"{name} is larger than the number of clients; use at most {clients}"


class LoraSettings(Strict):
    """W = W0 + (alpha / rank) B A on the chosen linear layers."""

    rank: Group = Field(
        default=32,
        description="r, the rows of A and the columns of B.",
    )
    min_rank: Group | None = Field(
        default=None,
        description="Lowest rank that a member may train and send; requires aggregation.rule = "
        "'svd'. Unset: all members have the run's rank.",
    )
    alpha: PositiveFactor = Field(
        default=64, description="Scale of the adapter: B A is multiplied by alpha / rank."
    )
    target_modules: Literal["all-linear"] | Modules = Field(
        default="all-linear",
        description="'all-linear', or the last parts of module names, such as 'q_proj'.",
    )

    def contradictions(self) -> Iterator[str]:
        if self.min_rank is not None and self.min_rank > self.rank:
            yield f"the lowest rank, {self.min_rank}, is above the highest, {self.rank}"


class GrpoSettings(Strict):
    """One GRPO step (paper, section 3.1 and appendix)."""

    prompts_per_step: Group = Field(default=8, description="b, the prompts in a step.")
    responses_per_prompt: Annotated[int, Field(ge=2, le=1 << 16, strict=True)] = Field(
        default=8, description="K, the responses to each prompt."
    )
    gradient_epochs: Group = Field(default=2, description="Optimizer steps on each batch.")
    learning_rate: PositiveShare = Field(
        default=1e-5, description="Learning rate of the clients' AdamW."
    )
    weight_decay: Share = Field(default=0.01, description="Weight decay of AdamW.")
    max_grad_norm: PositiveFactor = Field(
        default=1.0, description="Maximum gradient norm; longer gradients are scaled down to it."
    )
    clip_low: Decay = Field(
        default=0.2, description="Lower clip: ratios are clipped at 1 - clip_low."
    )
    clip_high: Factor = Field(
        default=0.25, description="Upper clip: ratios are clipped at 1 + clip_high."
    )
    clipping: Literal["token", "sequence"] = Field(
        default="token",
        description="token: clip each token's ratio. sequence: clip the geometric mean over a "
        "response (GSPO, with much smaller clip_low and clip_high). The paper uses token.",
    )
    kl_beta: Factor = Field(
        default=1e-4, description="Weight of the KL divergence from the base model."
    )
    entropy_coefficient: Annotated[float, Field(ge=-MAX_FACTOR, le=MAX_FACTOR, strict=True)] = (
        Field(default=0.0, description="Weight of the entropy bonus.")
    )
    loss_aggregation: Literal["sequence_mean", "token_mean"] = Field(
        default="sequence_mean",
        description="sequence_mean: mean over responses of each response's mean. token_mean: mean "
        "over all tokens.",
    )
    donor_ratio: Literal["local", "decoupled"] = Field(
        default="local",
        description="Old log-probabilities of a donated response. local: recomputed by the "
        "receiver. decoupled: local, weighed by min(local / donor, 2).",
    )
    rollout_correction: Literal["token_truncate", "none"] = Field(
        default="token_truncate",
        description="Weight of own tokens, min(pi_old / pi_engine, 2): 1 up to rounding with "
        "transformers, a correction with vLLM.",
    )
    resample: Annotated[int, Field(ge=0, le=MAX_DRAWS, strict=True)] = Field(
        default=0,
        description="Number of further draws of fresh prompts that a private step may make to "
        "replace groups of equal rewards (DAPO's dynamic sampling). The paper uses 0.",
    )
    optimizer_state: Literal["reset", "keep"] = Field(
        default="reset",
        description="AdamW's state at the start of a round: reset it, or keep the last one.",
    )
    temperature: PositiveFactor = Field(
        default=0.7, description="Sampling temperature of responses."
    )
    max_prompt_tokens: Tokens = Field(
        default=1024, description="Longest prompt; problem sets with longer ones are refused."
    )
    max_response_tokens: Tokens = Field(
        default=2048, description="Longest response; sampling stops there."
    )

    @property
    def longest_row(self) -> int:
        """Tokens of the longest prompt plus the longest response."""
        return self.max_prompt_tokens + self.max_response_tokens


class SwapSettings(Strict):
    """Public steps and the exchange (paper, section 3.4)."""

    strategy: Literal["keep", "random"] = Field(
        default="keep",
        description="keep: correct responses of peers replace wrong ones, up to half of the "
        "group. random: K of all members' responses.",
    )
    period: Rounds = Field(
        default=2, description="Step s = 1, 2, ... is public if s mod period = 0."
    )
    mode: Literal["synchronous", "pipelined"] = Field(
        default="synchronous",
        description="synchronous: wait for the exchange. pipelined: make the next private step "
        "while peers answer, and update on the exchange one step late. The paper uses synchronous.",
    )
    max_donated_tokens: Tokens | None = Field(
        default=None, description="Longest response that is donated. Unset: any length."
    )
    sampling_check: Literal["off", "report", "exclude"] = Field(
        default="report",
        description="Check by receivers that donated responses were sampled. report: show the "
        "operator which members are doubted. exclude: also stop donations of a member doubted by "
        "two receivers and by most of those that have judged it. off: draw public steps from the "
        "seed alone, so that the run can be repeated bit for bit.",
    )
    quorum: Clients | None = Field(
        default=None,
        description="Fewest clients with which an exchange may close. Unset: half of those that "
        "were heard from within the deadline's length, rounded up.",
    )
    deadline_seconds: Deadline = Field(
        default=600,
        description="Deadline of an exchange, counted from the first client's responses.",
    )

    def impossible(self, responses: int, local_steps: int) -> Iterator[str]:
        """Why there can be no public steps with this K and this tau."""
        if self.strategy == "keep" and responses % 2:
            yield (
                "strategy 'keep' fills a group up to half, so grpo.responses_per_prompt must "
                "be even"
            )
        if self.period > local_steps:
            yield (
                "swap.period is larger than local_steps, so no step would be public; "
                "use method = 'fedavg' if that is meant"
            )
        if self.mode == "pipelined" and self.period in (1, local_steps):
            yield (
                f"swap.mode 'pipelined' makes a private step while peers answer, and with "
                f"swap.period = {self.period} and local_steps = {local_steps} no public step of a "
                "round is followed by one; set a period between them, or mode = 'synchronous'"
            )


class FedProxSettings(Strict):
    """(mu / 2) |theta - theta_round|^2 over the LoRA factors."""

    mu: Factor = Field(
        default=0.01, description="Weight of the proximal term; only for method = 'fedprox'."
    )


def largest_share(chosen: float | None, updates: int) -> float:
    """The largest share of a mean of so many updates that one may have by a self-reported weight.

    By default twice an equal share, and at most a half, so that nobody outweighs all others.
    """
    return min(0.5, 2 / updates) if chosen is None else chosen


class AggregationSettings(Strict):
    """Averaging of the clients' factors; see docs/aggregation.md."""

    rule: Literal["fedit", "ffa", "svd", "median", "trimmed_mean", "multi_krum"] = Field(
        default="fedit", description="Averaging rule; docs/aggregation.md compares them."
    )
    weights: Literal["uniform", "examples", "steps"] = Field(
        default="uniform",
        description="Weights of clients: all alike; by private examples; or by local "
        "steps (members.fewest_steps).",
    )
    max_weight_share: PositiveShare | None = Field(
        default=None,
        description="Largest share of the mean for one member, with weights = 'examples', which "
        "members report themselves. By default min(1/2, 2/n) of n updates. "
        "The others share the rest by their weights. If that is impossible, all weigh the same.",
    )
    trim: Annotated[float, Field(gt=0, lt=0.5, strict=True)] = Field(
        default=0.2, description="beta, the share that trimmed_mean drops at either end."
    )
    krum_f: Clients = Field(
        default=1, description="Number of bad clients that multi_krum tolerates."
    )
    krum_m: Clients | None = Field(
        default=None, description="Number of clients that multi_krum averages; n - f by default."
    )
    clip_norm: PositiveFactor | None = Field(
        default=None,
        description="c: longer updates |theta_n - theta_round| are scaled down to c times their "
        "median.",
    )
    server_optimizer: Literal["none", "momentum", "adam"] = Field(
        default="none", description="Optimizer that takes the averaged update as a gradient."
    )
    server_learning_rate: PositiveFactor | None = Field(
        default=None, description="eta; by default 1 for momentum and 0.01 for adam."
    )
    quorum: Clients | None = Field(
        default=None,
        description="Fewest updates with which a round may close. Unset: half of the clients that "
        "were heard from within the deadline's length, rounded up.",
    )
    deadline_seconds: Deadline = Field(
        default=3600, description="Deadline of a round, counted from its first update."
    )

    def contradictions(self) -> Iterator[str]:
        if self.rule in ("median", "trimmed_mean") and self.weights != "uniform":
            yield (
                f"rule {self.rule!r} counts clients and takes no weights; use weights = 'uniform'"
            )
        if self.rule == "svd" and self.server_optimizer != "none":
            yield (
                "rule 'svd' computes new factors from the mean product, and a server_optimizer "
                "moves the old ones; use server_optimizer = 'none' or another rule"
            )

    def dropped(self, clients: int) -> int:
        """The number of clients that trimmed_mean drops at either end: floor(beta n)."""
        return math.floor(self.trim * clients + 1e-9)  # 0.29 * 100 is a little below 29

    def impossible(self, clients: int) -> Iterator[str]:
        """Why the rule is impossible with this many clients."""
        if (self.quorum or 1) > clients:
            yield _over_clients("aggregation.quorum", clients)
        if self.rule == "trimmed_mean" and clients < 3:
            yield (
                "rule 'trimmed_mean' drops at least one client at either end, so it needs 3, "
                f"and the run has {clients}; use rule 'fedit' or 'median'"
            )
        elif self.rule == "trimmed_mean" and self.dropped(clients) < 1:
            yield (
                f"rule 'trimmed_mean' with trim = {self.trim} drops none of {clients} clients; "
                f"set trim to at least 1 / {clients}, or use rule 'fedit' or 'median'"
            )
        if self.rule == "multi_krum":
            needed = 2 * self.krum_f + 3
            if clients < needed:
                yield (
                    f"rule 'multi_krum' with krum_f = {self.krum_f} needs at least 2 f + 3 = "
                    f"{needed} clients, and the run has {clients}"
                )
            if self.krum_m is not None and self.krum_m > clients - self.krum_f:
                yield (
                    f"krum_m = {self.krum_m} of {clients} clients would include some of the "
                    f"krum_f = {self.krum_f} bad ones; it can be at most n - f"
                )


class MembersSettings(Strict):
    """Members that join, leave or do fewer steps; see docs/operator.md."""

    minimum: Clients | None = Field(
        default=None,
        description="Fewest members with which the run starts and continues; quorums are then at "
        "most the number of members present. Unset: the run starts with all `clients`, and "
        "quorums are fixed.",
    )
    fewest_steps: Rounds | None = Field(
        default=None,
        description="Fewest local steps in an update, for members short of problems or time. "
        "Unset: all local_steps.",
    )


class EvaluationSettings(Strict):
    """pass@1 on the held-out test set, after every round."""

    samples: Group = Field(default=1, description="Responses to each test problem.")
    temperature: PositiveFactor = Field(default=0.7, description="Sampling temperature.")
    batch_size: Group = Field(default=512, description="Test problems in a batch.")


class PrivacySettings(Strict):
    """Record-level differential privacy of training on private prompts.

    docs/privacy.md lists what it covers and what it does not.
    """

    epsilon: Annotated[float, Field(ge=0.1, le=100, strict=True)] | None = Field(
        default=None,
        description="Bound on what the whole run reveals about one private prompt of a member; "
        "the noise follows from it. delta is min(1e-5, 1 / (10 n)) for n prompts. Unset: no "
        "noise.",
    )
    clip: PositiveFactor = Field(
        default=1.0,
        description="C, the maximum gradient norm of one prompt's responses; longer gradients are "
        "scaled down to it.",
    )


class WireSettings(Strict):
    """Encoding of a client's update."""

    precision: Precision = Field(
        default="float32",
        description="float32: send the adapter itself. bfloat16: send its rounded difference to "
        "the round's global adapter, in half of the bytes.",
    )


class RunSettings(Strict):
    """The settings of a run; they determine what it computes."""

    seed: Annotated[int, Field(ge=0, le=MAX_COUNT, strict=True)] = Field(
        default=0,
        description="Seed of all random draws, except those from a secret (swap.sampling_check, "
        "privacy.epsilon).",
    )
    method: Literal["fedavg", "fedprox", "pubswap"] = Field(
        default="pubswap", description="Training method; fedavg and fedprox have no public steps."
    )
    rounds: Rounds = Field(
        default=9, description="Number of rounds, each of local training and an average."
    )
    local_steps: Rounds = Field(default=40, description="tau, the GRPO steps in a round.")
    clients: Clients = Field(
        default=4, description="N, the number of clients; the run can start when all have enrolled."
    )
    verifier: Word = Field(
        default="math", description="Verifier of responses; docs/data.md lists them."
    )
    chat_template: Literal["auto", "none"] = Field(
        default="auto", description="auto: the base model's chat template, if it has one."
    )
    chat_template_options: TemplateOptions = Field(
        default={}, description="Arguments of the chat template, such as enable_thinking = false."
    )
    initial_adapter: Annotated[str, Field(pattern=PATTERN)] | None = Field(
        default=None,
        description="Digest of the adapter that round 1 starts from, set by `pubswap run create "
        "--initial-adapter FOLDER`. Unset: B = 0 and a random A.",
    )
    lora: LoraSettings = LoraSettings()
    grpo: GrpoSettings = GrpoSettings()
    swap: SwapSettings = SwapSettings()
    fedprox: FedProxSettings = FedProxSettings()
    aggregation: AggregationSettings = AggregationSettings()
    wire: WireSettings = WireSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    members: MembersSettings = MembersSettings()
    privacy: PrivacySettings = PrivacySettings()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """Raises ValidationError with all contradictions."""
        faults: list[InitErrorDetails] = [
            {"type": PydanticCustomError("contradiction", "{text}", {"text": text}), "input": self}
            for text in self.contradictions()
        ]
        if faults:
            raise ValidationError.from_exception_data(type(self).__name__, faults)
        return self

    def contradictions(self) -> Iterator[str]:
        """Contradictions between settings, each with advice."""
        for name, table in (("lora", self.lora), ("aggregation", self.aggregation)):
            yield from (f"{name}: {text}" for text in table.contradictions())
        if self.chat_template_options and self.chat_template == "none":
            yield "chat_template_options require chat_template = 'auto'"
        if reserved := sorted(NO_TEMPLATE_OPTIONS & self.chat_template_options.keys()):
            yield f"chat_template_options: {reserved[0]} is set by PubSwap itself"
        if self.method == "pubswap":
            yield from self.swap.impossible(self.grpo.responses_per_prompt, self.local_steps)
        if (self.swap.quorum or 1) > self.clients:
            yield _over_clients("swap.quorum", self.clients)
        yield from self.aggregation.impossible(self.clients)
        yield from self._impossible_members()
        if self.aggregation.rule == "svd" and self.grpo.optimizer_state == "keep":
            yield (
                "rule 'svd' computes new factors after each round, and AdamW's state of the old "
                "ones does not fit them; use grpo.optimizer_state = 'reset' or another rule"
            )
        if self.lora.min_rank is not None and self.aggregation.rule != "svd":
            yield (
                "members of unequal rank are averaged by their products: use aggregation.rule = "
                "'svd', or one rank for all"
            )
        if self.privacy.epsilon is not None:
            yield from self._not_private()
        yield from self._without_effect()

    def _impossible_members(self) -> Iterator[str]:
        fewest = self.members.fewest_steps
        if (self.members.minimum or 1) > self.clients:
            yield _over_clients("members.minimum", self.clients)
        if (fewest or 1) > self.local_steps:
            yield (
                f"members.fewest_steps is larger than local_steps; use at most {self.local_steps}"
            )
        if self.aggregation.weights == "steps" and fewest is None:
            yield (
                "weights = 'steps' weighs members by the local steps they made, and all make "
                "local_steps; set members.fewest_steps, or use weights = 'uniform'"
            )

    def _not_private(self) -> Iterator[str]:
        """Settings that reveal more of a private prompt than the noise accounts for."""
        if self.grpo.resample:
            yield (
                "grpo.resample chooses private prompts by their rewards, which privacy.epsilon "
                "does not account for; use resample = 0"
            )
        if self.grpo.loss_aggregation == "token_mean":
            yield (
                "loss_aggregation 'token_mean' divides by the tokens of all prompts of a step, so "
                "one prompt changes the weight of the others, and privacy.clip bounds nothing; "
                "use loss_aggregation = 'sequence_mean'"
            )
        if (steps := self.rounds * self.local_steps) > MAX_PRIVATE_STEPS:
            yield (
                f"rounds: with local_steps = {self.local_steps} they are {steps:,} steps, and "
                f"privacy.epsilon can be accounted for over at most {MAX_PRIVATE_STEPS:,}; "
                "use fewer rounds"
            )
        if (epochs := self.grpo.gradient_epochs) > MAX_PRIVATE_EPOCHS:
            yield (
                f"grpo.gradient_epochs: privacy.epsilon cannot be accounted for with {epochs}; "
                f"use at most {MAX_PRIVATE_EPOCHS}"
            )

    def _without_effect(self) -> Iterator[str]:
        """Settings that would have no effect, because the run has too few clients."""
        rules, peers = self.aggregation, self.clients - 1
        donated = self.method == "pubswap" and peers > 0
        if donated and self.swap.sampling_check == "exclude" and peers < 2:
            yield (
                "swap.sampling_check: 'exclude' needs two receivers that doubt a donor, and with 2 "
                "clients each has only one; use 'report', or more clients"
            )
        largest = largest_share(rules.max_weight_share, self.clients)
        if rules.weights == "examples" and self.clients > 1 and largest * self.clients <= 1:
            yield (
                f"aggregation.weights: 'examples' has no effect, because none of "
                f"{self.clients} clients may have a larger share than aggregation.max_weight_share "
                f"= {largest:g}; set that above 1 / {self.clients}, or use weights = 'uniform'"
            )

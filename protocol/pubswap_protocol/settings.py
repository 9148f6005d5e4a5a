"""A run's settings: the whole algorithm, with the paper's values as defaults."""

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, StrictBool, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from pubswap_protocol.bounds import (
    MAX_COUNT,
    MAX_FACTOR,
    Clients,
    Deadline,
    Factor,
    Group,
    PositiveFactor,
    PositiveShare,
    Rounds,
    Share,
    Strict,
    Tokens,
    Word,
)
from pubswap_protocol.digests import PATTERN
from pubswap_protocol.errors import InvalidProblems
from pubswap_protocol.methods.advantages import ADVANTAGES, Advantage, ByStd
from pubswap_protocol.methods.clippings import CLIPPINGS, Clipping, TokenClipping
from pubswap_protocol.methods.losses import LOSS_AGGREGATIONS, LossAggregation, SequenceMean
from pubswap_protocol.methods.method import METHODS, Method, PubSwap
from pubswap_protocol.methods.rules import RULES, FedIT, Rule, Svd
from pubswap_protocol.methods.server_optimizers import (
    SERVER_OPTIMIZERS,
    NoOptimizer,
    ServerOptimizer,
)
from pubswap_protocol.methods.weights import WEIGHTS, Steps, Uniform, Weights
from pubswap_protocol.prompts import MAX_PREAMBLE, Message, Prompt, SettingText, Shot, messages_of
from pubswap_protocol.tensors.safetensors_header import MAX_TENSORS
from pubswap_protocol.verifiers.registry import VERIFIERS, Math
from pubswap_protocol.verifiers.verifier import Verifier

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

ROUNDING = 1e-9  # of a weighted mean of scores

Modules = Annotated[tuple[Word, ...], Field(max_length=MAX_TENSORS)]
Precision = Literal["float32", "bfloat16"]
# Beyond these, accounting for differential privacy takes minutes and gigabytes, or fails.
MAX_PRIVATE_STEPS, MAX_PRIVATE_EPOCHS = 10**6, 256
MAX_SHOTS = 64
MAX_DRAWS = 64  # per step; if a few further draws do not help, more rarely do


class LoraSettings(Strict):
    """W = W0 + (alpha / rank) B A on the chosen linear layers."""

    rank: Group = Field(
        default=32,
        description="r, the rows of A and the columns of B.",
    )
    alpha: PositiveFactor = Field(
        default=64, description="Scale of the adapter: B A is multiplied by alpha / rank."
    )
    target_modules: Literal["all-linear"] | Modules = Field(
        default="all-linear",
        description="'all-linear', or the last parts of module names, such as 'q_proj'.",
    )


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
    advantage: Annotated[Advantage, ADVANTAGES] = Field(
        default=ByStd(),
        description="Advantage of a response. std: GRPO, the paper's. none: Dr. GRPO. mean: MaxRL.",
    )
    clipping: Annotated[Clipping, CLIPPINGS] = Field(
        default=TokenClipping(),
        description="Ratio that is clipped.",
    )
    kl_beta: Factor = Field(
        default=1e-4, description="Weight of the KL divergence from the base model."
    )
    entropy_coefficient: Annotated[float, Field(ge=-MAX_FACTOR, le=MAX_FACTOR, strict=True)] = (
        Field(default=0.0, description="Weight of the entropy bonus.")
    )
    loss_aggregation: Annotated[LossAggregation, LOSS_AGGREGATIONS] = Field(
        default=SequenceMean(),
        description="Coefficients c of the tokens' losses.",
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


class AggregationSettings(Strict):
    """Averaging of the clients' factors; see docs/aggregation.md."""

    rule: Annotated[Rule, RULES] = Field(
        default=FedIT(), description="Averaging rule; docs/aggregation.md compares them."
    )
    weights: Annotated[Weights, WEIGHTS] = Field(
        default=Uniform(),
        description="Weights of clients in the mean.",
    )
    clip_norm: PositiveFactor | None = Field(
        default=None,
        description="c: longer updates |theta_n - theta_round| are scaled down to c times their "
        "median.",
    )
    server_optimizer: Annotated[ServerOptimizer, SERVER_OPTIMIZERS] = Field(
        default=NoOptimizer(),
        description="Optimizer that takes the averaged update as a gradient.",
    )
    quorum: Clients | None = Field(
        default=None,
        description="Fewest updates with which a round may close. Unset: half of the clients that "
        "were heard from within the deadline's length, rounded up.",
    )
    deadline_seconds: Deadline = Field(
        default=3600, description="Deadline of a round, counted from its first update."
    )

    def contradictions(self, clients: int) -> Iterator[str]:
        """Why it is impossible with so many clients, or in itself."""
        yield from self.rule.impossible(clients)
        if not self.rule.weighs and not isinstance(self.weights, Uniform):
            yield (
                f"aggregation.rule {self.rule.name!r} counts clients and takes no weights; use "
                "weights = 'uniform'"
            )
        if isinstance(self.rule, Svd) and self.server_optimizer.memory:
            yield (
                "aggregation.rule 'svd' computes new factors from the mean product, and a "
                "server_optimizer moves the old ones; use server_optimizer = 'none' or another rule"
            )
        largest = self.weights.largest_share(clients)
        if clients > 1 and largest * clients <= 1:
            yield (
                f"aggregation.weights: {self.weights.name!r} has no effect, because none of "
                f"{clients} clients may have a larger share than max_share = {largest:g}; set that "
                f"above 1 / {clients}, or use weights = 'uniform'"
            )
        if (self.quorum or 1) > clients:
            yield f"aggregation.quorum is larger than the number of clients; use at most {clients}"


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

    epsilon: Annotated[float, Field(ge=0.1, le=100, strict=True)] = Field(
        description="Bound on what the whole run reveals about one private prompt of a member; "
        "the noise follows from it. delta is min(1e-5, 1 / (10 n)) for n prompts. Without this "
        "table there is no noise.",
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
        description="Seed of all random draws, except those from a secret (method.sampling_check, "
        "privacy.epsilon).",
    )
    method: Annotated[Method, METHODS] = Field(default=PubSwap(), description="Training method.")
    rounds: Rounds = Field(
        default=9, description="Number of rounds, each of local training and an average."
    )
    local_steps: Rounds = Field(default=40, description="tau, the GRPO steps in a round.")
    clients: Clients = Field(
        default=4, description="N, the number of clients; the run can start when all have enrolled."
    )
    verifier: Annotated[Verifier, VERIFIERS] = Field(
        default=Math(), description="Verifier of responses."
    )
    correct_at: Annotated[float, Field(ge=0.001, le=1, strict=True)] = Field(
        default=1.0,
        description="Score from which a response is correct: in exchanges, and in pass@1.",
    )
    chat_template: Literal["auto", "none"] = Field(
        default="auto", description="auto: the base model's chat template, if it has one."
    )
    chat_template_options: TemplateOptions = Field(
        default={}, description="Arguments of the chat template, such as enable_thinking = false."
    )
    system_prompt: SettingText | None = Field(
        default=None, description="System message before each prompt. Unset: the template's own."
    )
    few_shot: Annotated[tuple[Shot, ...], Field(max_length=MAX_SHOTS)] = Field(
        default=(),
        description="Examples before each prompt, as messages of the user and the assistant: a "
        'list of {prompt = "…", answer = "…"}, or in a run file the path of a JSONL file of these.',
    )
    initial_adapter: Annotated[str, Field(pattern=PATTERN)] | None = Field(
        default=None,
        description="Digest of the adapter that round 1 starts from, set by `pubswap run create "
        "--initial-adapter FOLDER`. Unset: B = 0 and a random A.",
    )
    lora: LoraSettings = LoraSettings()
    grpo: GrpoSettings = GrpoSettings()
    aggregation: AggregationSettings = AggregationSettings()
    wire: WireSettings = WireSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    members: MembersSettings = MembersSettings()
    privacy: PrivacySettings | None = None

    def is_correct(self, score: float) -> bool:
        """Whether a response with this score is correct; rounding in a weighted mean is allowed."""
        return bool(score >= self.correct_at - ROUNDING)

    def conversation(self, prompt: Prompt) -> Prompt:
        """A prompt as the model gets it, behind the run's system prompt and examples.

        Raises InvalidProblems if the run has no place for one of its messages.
        """
        if self.chat_template == "none":
            if isinstance(prompt, str):
                return prompt
            raise InvalidProblems(
                "The prompt is a list of messages, which takes a chat template, and the run has "
                "chat_template = 'none'. Write it as one text."
            )
        if self.system_prompt is None and not self.few_shot:
            return prompt
        messages = messages_of(prompt)
        own = int(messages[0].role == "system")
        system, rest = messages[:own], messages[own:]
        if self.system_prompt is not None:
            if system:
                raise InvalidProblems(
                    "The prompt has a system message, and the run has a system_prompt. Leave one "
                    "of them out."
                )
            system = (Message(role="system", content=self.system_prompt),)
        shots = (
            message
            for shot in self.few_shot
            for message in (
                Message(role="user", content=shot.prompt),
                Message(role="assistant", content=shot.answer),
            )
        )
        return (*system, *shots, *rest)

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
        if self.chat_template_options and self.chat_template == "none":
            yield "chat_template_options require chat_template = 'auto'"
        yield from self._unplaced()
        if reserved := sorted(NO_TEMPLATE_OPTIONS & self.chat_template_options.keys()):
            yield f"chat_template_options: {reserved[0]} is set by PubSwap itself"
        responses, tau = self.grpo.responses_per_prompt, self.local_steps
        yield from self.method.impossible(responses, tau, self.clients)
        yield from self.aggregation.contradictions(self.clients)
        yield from self._impossible_members()
        if isinstance(self.aggregation.rule, Svd):
            yield from self._no_new_factors(self.aggregation.rule)
        if self.privacy is not None:
            yield from self._not_private()

    def _unplaced(self) -> Iterator[str]:
        given = [name for name in ("system_prompt", "few_shot") if getattr(self, name)]
        if given and self.chat_template == "none":
            yield f"{given[0]} requires chat_template = 'auto'; or write it into the prompts"
        size = len(self.system_prompt or "")
        size += sum(len(shot.prompt) + len(shot.answer) for shot in self.few_shot)
        if size > MAX_PREAMBLE:
            yield (
                f"{' and '.join(given)}: {size:,} characters; at most {MAX_PREAMBLE:,} are allowed"
            )

    def _no_new_factors(self, rule: Svd) -> Iterator[str]:
        if self.grpo.optimizer_state == "keep":
            yield (
                "aggregation.rule 'svd' computes new factors after each round, and AdamW's state "
                "of the old ones does not fit them; use grpo.optimizer_state = 'reset' or "
                "another rule"
            )
        if (rule.min_rank or 1) > self.lora.rank:
            yield f"aggregation.rule.min_rank is above lora.rank; use at most {self.lora.rank}"

    def _impossible_members(self) -> Iterator[str]:
        fewest = self.members.fewest_steps
        if (self.members.minimum or 1) > self.clients:
            yield (
                f"members.minimum is larger than the number of clients; use at most {self.clients}"
            )
        if (fewest or 1) > self.local_steps:
            yield (
                f"members.fewest_steps is larger than local_steps; use at most {self.local_steps}"
            )
        if isinstance(self.aggregation.weights, Steps) and fewest is None:
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
        if not self.grpo.loss_aggregation.separable:
            yield (
                "grpo.loss_aggregation divides by the tokens of all prompts of a step, so "
                "one prompt changes the weight of the others, and privacy.clip bounds nothing; "
                "use 'sequence_mean' or 'constant'"
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

    @property
    def min_rank(self) -> int | None:
        """The lowest rank that a member may train, if it may be below the run's."""
        rule = self.aggregation.rule
        return rule.min_rank if isinstance(rule, Svd) else None

    @property
    def exchange(self) -> PubSwap | None:
        """The public steps' part of the method, if it has any."""
        return self.method if isinstance(self.method, PubSwap) else None

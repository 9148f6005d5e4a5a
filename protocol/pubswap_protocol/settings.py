"""A run's settings: the whole algorithm, with the paper's values as defaults."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[int, Field(gt=0)]
Precision = Literal["float32", "bfloat16", "int8"]


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LoraSettings(_Settings):
    """W = W0 + (alpha / rank) B A on the chosen linear layers."""

    rank: Positive = 32
    alpha: float = Field(default=64, gt=0)
    target_modules: Literal["all-linear"] | tuple[str, ...] = Field(
        default="all-linear",
        description="'all-linear', or the last parts of the module names, such as 'q_proj'.",
    )


class GrpoSettings(_Settings):
    """One GRPO step (paper, section 3.1 and appendix)."""

    prompts_per_step: Positive = Field(default=8, description="b")
    responses_per_prompt: int = Field(default=8, ge=2, description="K")
    gradient_epochs: Positive = 2
    learning_rate: float = Field(default=1e-5, gt=0)
    weight_decay: float = Field(default=0.01, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    clip_low: float = Field(default=0.2, ge=0, lt=1)
    clip_high: float = Field(default=0.25, ge=0)
    dual_clip: float | None = Field(default=None, gt=1, description="verl's default is 3.0.")
    kl_beta: float = Field(default=1e-4, ge=0)
    entropy_coefficient: float = 0.0
    advantage_epsilon: float = Field(default=1e-6, ge=0)
    loss_aggregation: Literal["sequence_mean", "token_mean"] = "sequence_mean"
    donor_ratio: Literal["local", "donor", "decoupled"] = "local"
    donor_ratio_cap: float = Field(default=2.0, gt=0, description="C of the decoupled ratio.")
    rollout_correction: Literal["token_truncate", "none"] = Field(
        default="token_truncate",
        description="Weigh own tokens by min(pi_old / pi_engine, C): 1 but for rounding when the "
        "trainer itself samples, a correction when vLLM does.",
    )
    rollout_correction_cap: float = Field(default=2.0, gt=0, description="C of that ratio.")
    zero_variance: Literal["kl", "drop"] = Field(
        default="kl",
        description="A group of equal rewards teaches nothing but its KL term: keep or drop it.",
    )
    optimizer_state: Literal["reset", "keep"] = "reset"
    temperature: float = Field(default=0.7, gt=0)
    max_prompt_tokens: Positive = 1024
    max_response_tokens: Positive = 2048


class SwapSettings(_Settings):
    """Public steps and the exchange (paper, section 3.4)."""

    strategy: Literal["keep", "random"] = "keep"
    period: int = Field(default=2, ge=1, description="Step s is public when s mod period = 0.")
    quorum: Positive = Field(default=1, description="Fewest clients an exchange may close with.")
    deadline_seconds: float = Field(
        default=600, gt=0, description="Counted from the first client's responses."
    )


class FedProxSettings(_Settings):
    """(mu / 2) |theta - theta_round|^2 over the LoRA factors."""

    mu: float = Field(default=0.01, ge=0)


class AggregationSettings(_Settings):
    """FedIT: the mean of the clients' B and the mean of their A, separately."""

    rule: Literal["fedit"] = "fedit"
    weights: Literal["uniform", "examples"] = "uniform"
    quorum: Positive = Field(default=1, description="Fewest updates a round may close with.")
    deadline_seconds: float = Field(
        default=3600, gt=0, description="Counted from the round's first update."
    )


class EvaluationSettings(_Settings):
    """pass@1 on the held-out test set, after every round."""

    samples: Positive = 1
    temperature: float = Field(default=0.7, gt=0)
    batch_size: Positive = 512


class WireSettings(_Settings):
    """How a client's update travels; see `wire.py`."""

    precision: Precision = Field(
        default="float32",
        description="float32: the adapter itself. bfloat16 and int8: its difference to the "
        "round's global adapter, of half and a quarter of the size; what rounding leaves out is "
        "kept at the client and goes into its next update.",
    )


class RunSettings(_Settings):
    """Everything that decides what a run computes."""

    seed: int = Field(default=0, ge=0)
    method: Literal["fedavg", "fedprox", "pubswap"] = "pubswap"
    rounds: Positive = 9
    local_steps: Positive = Field(default=40, description="tau")
    clients: Positive = Field(default=4, description="N: a run starts when this many have joined.")
    verifier: str = "math"
    chat_template: Literal["auto", "none"] = "auto"
    lora: LoraSettings = LoraSettings()
    grpo: GrpoSettings = GrpoSettings()
    swap: SwapSettings = SwapSettings()
    fedprox: FedProxSettings = FedProxSettings()
    aggregation: AggregationSettings = AggregationSettings()
    wire: WireSettings = WireSettings()
    evaluation: EvaluationSettings = EvaluationSettings()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.method == "pubswap":
            if self.swap.strategy == "keep" and self.grpo.responses_per_prompt % 2:
                raise ValueError(
                    "strategy 'keep' fills a group up to half, so grpo.responses_per_prompt must "
                    "be even"
                )
            if self.swap.period > self.local_steps:
                raise ValueError(
                    "swap.period is larger than local_steps, so no step would be public; "
                    "use method = 'fedavg' if that is meant"
                )
        for quorum in (self.swap.quorum, self.aggregation.quorum):
            if quorum > self.clients:
                raise ValueError("a quorum is larger than the number of clients")
        return self

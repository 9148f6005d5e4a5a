"""Training methods: what a client does besides its private steps."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from pubswap_protocol.bounds import Clients, Deadline, Factor, Rounds
from pubswap_protocol.methods.registry import Registrable, Registry
from pubswap_protocol.methods.strategies import STRATEGIES, Keep, Strategy


class Method(Registrable):
    """A training method; by itself FedAvg: local GRPO steps, then the mean."""

    def impossible(self, responses: int, local_steps: int, clients: int) -> Iterator[str]:
        """Why it is impossible with this K, tau and N; each text names the setting."""
        yield from ()


METHODS = Registry[Method]("training method", default="pubswap")


@METHODS.register
class PubSwap(Method):
    """Private steps, and public steps with an exchange of responses (paper, section 3.4)."""

    name = "pubswap"

    strategy: Annotated[Strategy, STRATEGIES] = Field(
        default=Keep(), description="The responses that a client trains on in a public step."
    )
    period: Rounds = Field(
        default=2, description="Step s = 1, 2, ... is public if s mod period = 0."
    )
    mode: Literal["synchronous", "pipelined"] = Field(
        default="synchronous",
        description="synchronous: wait for the exchange. pipelined: make the next private step "
        "while peers answer, and update on the exchange one step late. The paper uses synchronous.",
    )
    donor_ratio: Literal["local", "decoupled"] = Field(
        default="local",
        description="Old log-probabilities of a donated response. local: recomputed by the "
        "receiver. decoupled: local, weighed by min(local / donor, 2).",
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

    def impossible(self, responses: int, local_steps: int, clients: int) -> Iterator[str]:
        yield from self.strategy.impossible(responses)
        if self.period > local_steps:
            yield (
                "method.period is larger than local_steps, so no step would be public; use "
                "method = 'fedavg' if that is meant"
            )
        if self.mode == "pipelined" and self.period in (1, local_steps):
            yield (
                "method.mode 'pipelined' makes a private step while peers answer, and with "
                f"method.period = {self.period} and local_steps = {local_steps} no public step of "
                "a round is followed by one; set a period between them, or mode = 'synchronous'"
            )
        if (self.quorum or 1) > clients:
            yield f"method.quorum is larger than the number of clients; use at most {clients}"
        if clients == 2 and self.sampling_check == "exclude":
            yield (
                "method.sampling_check: 'exclude' needs two receivers that doubt a donor, and with "
                "2 clients each has only one; use 'report', or more clients"
            )


@METHODS.register
class FedAvg(Method):
    """Private steps alone, and the mean after each round (McMahan et al., 2017)."""

    name = "fedavg"


@METHODS.register
class FedProx(Method):
    """FedAvg with (mu / 2) |theta - theta_round|^2 in the loss (Li et al., 2020)."""

    name = "fedprox"

    mu: Factor = Field(default=0.01, description="Weight of the proximal term.")

"""What a run asks of an organisation: its terms, and the facts that are shown of them."""

from dataclasses import dataclass
from typing import Any

from pubswap_protocol.command_line.amounts import size_text
from pubswap_protocol.messages import RunView
from pubswap_protocol.methods.registry import Registrable
from pubswap_protocol.schedule import public_steps_per_round
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.update_encoding import largest_update
from pubswap_protocol.terms import agreed
from pubswap_protocol.verifiers.registry import packages

FACTS = {
    "rounds": "rounds",
    "local steps a round": "local_steps",
    "LoRA rank": "lora.rank",
    "tokens of the longest response": "grpo.max_response_tokens",
    "temperature": "grpo.temperature",
    "learning rate": "grpo.learning_rate",
    "KL weight": "grpo.kl_beta",
    "epsilon of differential privacy": "privacy.epsilon",
}
"""Facts that show a numeric setting, and the setting's name."""

MESSAGES = {"system prompt": "system_prompt", "few-shot examples": "few_shot"}
"""Facts that show the messages before each prompt, and the setting's name."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a run asks for.

    `terms` is what a person approves, `weights` the base model's digest, `update_bytes` the largest
    size of an update, and `round` the current round, or 0 before the first.
    """

    settings: RunSettings
    name: str
    coordinator: str
    bucket: str | None  # needs no approval: one that the policy does not list is not used
    run: str
    terms: str
    model: str
    weights: str
    update_bytes: int
    round: int

    @property
    def rounds(self) -> int:
        """The number of rounds in the settings, or the current round if that is higher."""
        return max(self.settings.rounds, self.round)

    def number(self, setting: str) -> float | None:
        """The run's value of a numeric setting, such as `lora.rank`; None if it is unset."""
        value = self.rounds if setting == "rounds" else self._path(setting)[-1]
        return value if isinstance(value, int | float) else None

    def has(self, setting: str) -> bool:
        """Whether a run has a setting: one with another method has no parameters of this one."""
        return all(
            not isinstance(owner, Registrable) or part in type(owner).model_fields
            for owner, part in zip(self._path(setting), setting.split("."), strict=False)
        )

    def _path(self, setting: str) -> list[Any]:
        """The settings, and the value at each part of a setting's name; None if there is none."""
        found: list[Any] = [self.settings]
        for part in setting.split("."):
            found.append(getattr(found[-1], part, None))
        return found

    @property
    def packages(self) -> tuple[str, ...]:
        """The verifiers that come from installed packages, as a policy names them."""
        return packages(self.settings.verifier)

    @property
    def sends_responses(self) -> bool:
        """Whether there are public steps."""
        return self.settings.exchange is not None

    @property
    def responses(self) -> int:
        """The number of responses to public prompts that are sent in a round."""
        grpo = self.settings.grpo
        in_a_step = grpo.prompts_per_step * grpo.responses_per_prompt
        return public_steps_per_round(self.settings) * in_a_step

    def facts(self) -> dict[str, str]:
        """The facts that are shown beside the policy."""
        grpo = self.settings.grpo
        sent = (
            f"{self.responses} a round: {grpo.responses_per_prompt} to a prompt, "
            f"{grpo.prompts_per_step} prompts to a public step"
        )
        shots = [f"{shot.prompt}\n→ {shot.answer}" for shot in self.settings.few_shot]
        verifiers = [
            name if "@" in name else f"{name}, which is not installed here as a wheel"
            for name in self.packages
        ]
        return {
            "coordinator": self.coordinator,
            "run": f"{self.name} ({self.run})",
            "base model": f"{self.model}, weights {self.weights}",
            **{what: shown(self.number(setting)) for what, setting in FACTS.items()},
            "system prompt": self.settings.system_prompt or "none",
            "few-shot examples": "\n\n".join(shots) or "none",
            "verifier": ", ".join(verifiers) or str(self.settings.verifier),
            "sends responses": sent if self.sends_responses else "no",
            "sends an adapter": f"each round, up to {size_text(self.update_bytes)}",
        }


def shown(number: float | None) -> str:
    """A setting's number as a person reads it."""
    if number is None:
        return "unset"
    return str(int(number)) if number == int(number) else f"{number:g}"


def proposal_of(view: RunView, coordinator: str) -> Proposal:
    """What a run asks; raises OtherTerms if it is shown otherwise than in its terms."""
    view = agreed(view)
    return Proposal(
        settings=view.settings,
        name=view.name,
        coordinator=coordinator.rstrip("/"),
        bucket=view.bucket,
        run=view.id,
        terms=view.terms or "",
        model=view.model.source,
        weights=view.model.weights_digest,
        update_bytes=largest_update(view.model.layout, view.settings),
        round=view.round,
    )

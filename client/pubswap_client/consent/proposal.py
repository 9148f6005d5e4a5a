"""What a run asks of an organisation."""

from dataclasses import dataclass
from typing import Any

from pubswap_protocol.messages import RunView
from pubswap_protocol.methods.registry import Registrable
from pubswap_protocol.schedule import public_steps_per_round
from pubswap_protocol.settings import RunSettings
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
"""Numeric settings that are compared with every policy, in words."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a run asks for, as its terms say it, and the address of its coordinator."""

    view: RunView
    coordinator: str

    @property
    def settings(self) -> RunSettings:
        """The run's settings."""
        return self.view.settings

    @property
    def terms(self) -> str:
        """What a person approves."""
        return self.view.terms or ""

    @property
    def rounds(self) -> int:
        """The number of rounds in the settings, or the current round if that is higher."""
        return max(self.settings.rounds, self.view.round)

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


def shown(number: float | None) -> str:
    """A setting's number as a person reads it."""
    if number is None:
        return "unset"
    return str(int(number)) if number == int(number) else f"{number:g}"


def proposal_of(view: RunView, coordinator: str) -> Proposal:
    """What a run asks; raises OtherTerms if it is shown otherwise than in its terms."""
    return Proposal(agreed(view), coordinator.rstrip("/"))

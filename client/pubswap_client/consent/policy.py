"""`policy.toml` in the state folder: what this organisation allows; it outranks the coordinator."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from pubswap_client.consent.proposal import Proposal, shown
from pubswap_client.toml_files import read_toml
from pubswap_protocol.command_line.keys import dotted_keys, flat, key_fault, unknown_key
from pubswap_protocol.command_line.schema_text import tables
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.model import ModelDigest
from pubswap_protocol.settings import RunSettings

Number = Annotated[float, Field(strict=True)]
Count = Annotated[int, Field(gt=0, strict=True)]
Names = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)]


class Limit(BaseModel, extra="forbid", frozen=True, allow_inf_nan=False):
    """The smallest and the largest value of a number. An unset number is outside every limit."""

    min: Number | None = None
    max: Number | None = None

    @model_validator(mode="after")
    def _something_is_within(self) -> Self:
        if self.min is None and self.max is None:
            raise ValueError("a limit has a min, a max, or both, such as {max = 8}")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"no number is {self}")
        return self

    def __str__(self) -> str:
        sides = (("at least", self.min), ("at most", self.max))
        return ", ".join(f"{words} {shown(side)}" for words, side in sides if side is not None)

    def allows(self, asked: float | None) -> bool:
        """Whether a run may ask for this."""
        return (
            asked is not None
            and (self.min is None or asked >= self.min)
            and (self.max is None or asked <= self.max)
        )


@cache
def numbers() -> tuple[str, ...]:
    """The names of all settings of a run that are numbers."""
    return tuple(
        f"{table}.{key}".strip(".")
        for table, _, fields in tables(RunSettings)
        for key, field in fields.items()
        if field["type_text"].startswith(("integer", "number"))
    )


def _by_name(values: Any) -> Any:
    """Flatten nested tables to limits by name; raises ValueError for unknown numeric settings."""
    if not isinstance(values, Mapping):
        return values
    limits = flat(values, whole=numbers())
    for key in limits:
        name = key.removesuffix(".min").removesuffix(".max")
        if name not in numbers():
            fault = unknown_key(name, numbers())
            raise ValueError(f"a limit is on a number in a run's settings; {fault}")
    return limits


Limits = Annotated[dict[str, Limit], BeforeValidator(_by_name)]
"""Limits by name. In TOML: limits.method.period.min = 4, or `"method.period" = {min = 4}`."""


class LocalPolicy(BaseModel, extra="forbid", frozen=True, allow_inf_nan=False):
    """The file, validated; see docs/organisation.md."""

    coordinators: Names | None = Field(
        default=None, description="Allowed coordinators, by address."
    )
    buckets: tuple[str, ...] = Field(
        default=(),
        description="Address prefixes of buckets that adapters may also go straight to and come "
        "from. Unset: only through the coordinator.",
    )
    runs: Names | None = Field(default=None, description="Allowed runs, by id or name.")
    base_models: tuple[ModelDigest, ...] | None = Field(
        default=None,
        min_length=1,
        description="Allowed base models, by the digest of their weights.",
    )
    verifiers: Names | None = Field(
        default=None,
        description="Allowed verifiers of installed packages, each with its package's digest. "
        "Unset: none but PubSwap's own.",
    )
    unconfined_verifiers: bool = Field(
        default=False,
        strict=True,
        description="Whether these run also where the machine has no whole sandbox.",
    )
    limits: Limits = Field(
        default={},
        description="Smallest (`min`) and largest (`max`) value of any numeric setting of a run: "
        "limits.lora.rank.max = 64. A run that leaves a limited setting unset is refused.",
    )
    send_responses: bool = Field(
        default=True, strict=True, description="Whether responses to public prompts may be sent."
    )
    max_responses_a_round: Count | None = Field(
        default=None,
        description="Most responses to public prompts in a round, over all of its public steps.",
    )
    approve: Literal["first", "never"] = Field(
        default="first", description="When a person has to approve the run."
    )

    @field_validator("buckets")
    @classmethod
    def _are_addresses(cls, buckets: tuple[str, ...]) -> tuple[str, ...]:
        for url in buckets:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
                raise ValueError(
                    f"{url!r} is not a bucket's address, such as https://s3.example.org/bucket"
                )
        return buckets


def policy_path(state: Path) -> Path:
    """The path of `policy.toml` in a state folder."""
    return state / "policy.toml"


def load_policy(path: Path) -> LocalPolicy:
    """The policy; raises InvalidSettings, naming the wrong key."""
    values = read_toml(path)
    if not values:  # for example while an editor saves it
        raise InvalidSettings(f"{path} is empty; a policy has at least one key.")
    try:
        return LocalPolicy.model_validate(values)
    except ValidationError as error:
        fault = key_fault(error.errors()[0], dotted_keys(LocalPolicy))
        raise InvalidSettings(f"{path}: {fault}") from None


def allows_unconfined(state: Path) -> bool:
    """Whether plug-ins may score in the member of this folder without a whole sandbox."""
    try:
        return load_policy(policy_path(state)).unconfined_verifiers
    except InvalidSettings:  # also if there is none
        return False


def default_text(proposal: Proposal) -> str:
    """The text of a policy that allows what the run asks now, and no more."""
    settings = proposal.settings
    pinned = {
        "coordinators": [proposal.coordinator],
        "buckets": [proposal.view.bucket] if proposal.view.bucket else None,
        "runs": [proposal.view.name],
        "base_models": [proposal.view.model.weights_digest],
        "verifiers": [each for each in proposal.packages if "@" in each] or None,
        "limits.rounds.max": settings.rounds,
        "limits.local_steps.max": settings.local_steps,
        "limits.lora.rank.max": settings.lora.rank,
        "limits.grpo.max_response_tokens.max": settings.grpo.max_response_tokens,
        "limits.grpo.kl_beta.min": settings.grpo.kl_beta,
        "limits.privacy.epsilon.max": settings.privacy and settings.privacy.epsilon,
        "send_responses": proposal.sends_responses,
        "max_responses_a_round": proposal.responses or None,
        "approve": "first",
    }
    # A JSON string, number, boolean or list of these is the same in TOML.
    values = {key: value for key, value in pinned.items() if value is not None}
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    return "\n".join([_HEAD, *lines, _MORE])


_HEAD = """\
# What this organisation allows. It outranks the coordinator, and changes apply at once.
# Written from what the run asked then. If the run asks for more, it is refused.
# docs/organisation.md explains the keys; `pubswap client policy check` tests them.
"""
_MORE = """
# limits.clients.min = 3
# limits.grpo.responses_per_prompt.max = 8
# limits.method.period.min = 4
"""

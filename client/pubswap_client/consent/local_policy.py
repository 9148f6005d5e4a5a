"""`policy.toml` in the state folder: what this organisation allows; it outranks the coordinator."""

import json
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, ValidationError, field_validator

from pubswap_client.consent.ask import Ask
from pubswap_client.consent.limits import Limits
from pubswap_client.toml_files import read_toml
from pubswap_protocol.command_line.removed import removal
from pubswap_protocol.errors import InvalidSettings, first_fault
from pubswap_protocol.model import ModelDigest

Count = Annotated[int, Field(gt=0, strict=True)]
Names = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)]


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
    max_bytes_a_day: Count | None = Field(
        default=None, description="Most bytes in the bodies of all requests in a UTC day."
    )
    approve: Literal["first", "every-round", "never"] = Field(
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
    """The policy; raises InvalidSettings naming the wrong key and, if it is unknown, all keys."""
    values = read_toml(path)
    if not values:  # for example while an editor saves it
        raise InvalidSettings(f"{path} is empty; a policy has at least one key.")
    try:
        return LocalPolicy.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        known = removal(str(first["loc"][0])) is None
        if first["type"] == "extra_forbidden" and len(first["loc"]) == 1 and known:
            keys = ", ".join(sorted(LocalPolicy.model_fields))
            raise InvalidSettings(
                f"{path} has the unknown key {first['loc'][0]!r}; the keys are {keys}."
            ) from None
        raise InvalidSettings(f"{path}: {first_fault(error)}") from None


def allows_unconfined(state: Path) -> bool:
    """Whether plug-ins may score in the member of this folder without a whole sandbox."""
    try:
        return load_policy(policy_path(state)).unconfined_verifiers
    except InvalidSettings:  # also if there is none
        return False


def default_text(ask: Ask) -> str:
    """The text of a policy that allows what the run asks now, and no more."""
    grpo, privacy = ask.settings.grpo, ask.settings.privacy
    pinned = {
        "coordinators": [ask.coordinator],
        "buckets": [ask.bucket] if ask.bucket else None,
        "runs": [ask.name],
        "base_models": [ask.weights],
        "verifiers": [each for each in ask.packages if "@" in each] or None,
        "limits.rounds.max": ask.settings.rounds,
        "limits.local_steps.max": ask.settings.local_steps,
        "limits.lora.rank.max": ask.settings.lora.rank,
        "limits.grpo.max_response_tokens.max": grpo.max_response_tokens,
        "limits.grpo.kl_beta.min": grpo.kl_beta,
        "limits.privacy.epsilon.max": privacy and privacy.epsilon,
        "send_responses": ask.sends_responses,
        "max_responses_a_round": ask.responses or None,
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
# max_bytes_a_day = 2_000_000_000
"""

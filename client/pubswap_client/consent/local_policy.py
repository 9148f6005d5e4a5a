"""`policy.toml` in the state folder: what this organisation allows; it outranks the coordinator."""

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, ValidationError, field_validator

from pubswap_client.consent.ask import Ask
from pubswap_client.consent.limits import Limits
from pubswap_client.toml_files import read_toml
from pubswap_protocol.errors import InvalidSettings, first_fault
from pubswap_protocol.messages import Progress, UpdateMetrics
from pubswap_protocol.model import ModelDigest

COUNTERS = tuple(
    dict.fromkeys(
        name
        for message in (UpdateMetrics, Progress)
        for name, field in message.model_fields.items()
        if not field.is_required()
    )
)
"""Optional fields of the messages; rounds, steps and the number of examples are required."""

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")

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
    counters: Literal["all"] | tuple[str, ...] = Field(
        default="all",
        description="Counters that may be sent. The number of examples is always sent.",
    )
    max_bytes_a_day: Count | None = Field(
        default=None, description="Most bytes in the bodies of all requests in a UTC day."
    )
    max_rounds_a_day: Count | None = Field(
        default=None,
        description="Most rounds in a UTC day in which something is sent; a repeated round counts "
        "again.",
    )
    hours: str | None = Field(
        default=None,
        description='Hours for training and sending, in local time, such as "18:00-07:00".',
    )
    days: tuple[Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"], ...] | None = Field(
        default=None,
        min_length=1,
        description="Days for training and sending; hours over midnight belong to the first day.",
    )
    approve: Literal["first", "every-round", "never"] = Field(
        default="first", description="When a person has to approve the run."
    )

    @field_validator("counters")
    @classmethod
    def _known_counters(cls, counters: Any) -> Any:
        unknown = [name for name in counters if name not in COUNTERS] if counters != "all" else []
        if unknown:
            raise ValueError(f"{unknown[0]!r} is not one of the counters {', '.join(COUNTERS)}")
        return counters

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

    @field_validator("hours")
    @classmethod
    def _are_hours(cls, hours: str | None) -> str | None:
        match = _HOURS.fullmatch(hours) if hours is not None else None
        if hours is not None and (match is None or match.groups()[:2] == match.groups()[2:]):
            raise ValueError(f'{hours!r} is not a span of hours, such as "18:00-07:00"')
        return hours

    @property
    def span(self) -> tuple[int, int]:
        """The hours' beginning and end in minutes; the end is always after the beginning."""
        if self.hours is None:
            return 0, 24 * 60
        begin, end = (60 * int(text[:2]) + int(text[3:]) for text in self.hours.split("-"))
        return begin, end if end > begin else end + 24 * 60


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
        if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
            keys = ", ".join(sorted(LocalPolicy.model_fields))
            raise InvalidSettings(
                f"{path} has the unknown key {first['loc'][0]!r}; the keys are {keys}."
            ) from None
        raise InvalidSettings(f"{path}: {first_fault(error)}") from None


def default_text(ask: Ask) -> str:
    """The text of a policy that allows what the run asks now, and no more."""
    grpo, epsilon = ask.settings.grpo, ask.settings.privacy.epsilon
    pinned = {
        "coordinators": [ask.coordinator],
        "buckets": [ask.bucket] if ask.bucket else None,
        "runs": [ask.name],
        "base_models": [ask.weights],
        "limits.rounds.max": ask.settings.rounds,
        "limits.local_steps.max": ask.settings.local_steps,
        "limits.lora.rank.max": ask.settings.lora.rank,
        "limits.grpo.max_response_tokens.max": grpo.max_response_tokens,
        "limits.grpo.kl_beta.min": grpo.kl_beta,
        "limits.privacy.epsilon.max": epsilon,
        "send_responses": ask.sends_responses,
        "max_responses_a_round": ask.responses or None,
        "counters": "all",
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
# limits.swap.period.min = 4
# max_bytes_a_day = 2_000_000_000
# max_rounds_a_day = 24
# hours = "18:00-07:00"
# days = ["mon", "tue", "wed", "thu", "fri"]
"""

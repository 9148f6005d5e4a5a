"""A policy's limits on a run's numeric settings by name, such as `method.period` at least 4."""

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from pubswap_protocol.command_line.keys import flat, unknown_key
from pubswap_protocol.command_line.schema_text import tables
from pubswap_protocol.methods.registry import Named
from pubswap_protocol.settings import RunSettings

Number = Annotated[float, Field(strict=True)]


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


def shown(number: float | None) -> str:
    """A setting's number as a person reads it."""
    if number is None:
        return "unset"
    return str(int(number)) if number == int(number) else f"{number:g}"


def number_of(settings: RunSettings, name: str) -> float | None:
    """A run's setting by its name, such as `grpo.kl_beta`; None if it is unset."""
    value: Any = settings
    for part in name.split("."):
        value = getattr(value, part, None)
    return value if isinstance(value, int | float) else None


def concerns(settings: RunSettings, name: str) -> bool:
    """Whether a run has a setting: one with another method has no parameters of this one."""
    value: Any = settings
    for part in name.split("."):
        if isinstance(value, Named) and part not in type(value).model_fields:
            return False
        value = getattr(value, part, None)
    return True


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

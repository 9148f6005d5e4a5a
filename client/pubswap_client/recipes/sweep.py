"""A recipe's sweep: which settings are run, each with every seed."""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from pubswap_client.recipes.inheritance import flat

Value = bool | int | float | str
Axes = dict[str, tuple[Value, ...]]

MEMBERS = "members"
FEDERATED = "federated"
MEMBERSHIPS = (FEDERATED, "alone", "pooled")


class Sweep(BaseModel):
    """`[sweep]`: seeds, and tables of axes; each table is the product of its axes.

    An axis is a setting by its dotted key, or `members`: federated, each client alone, or one
    client with all private sets pooled.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        default=(0,), min_length=1, description="Each setting is run with each of them."
    )
    grid: tuple[Axes, ...] = Field(
        default=(), description="Tables of axes; an axis is a dotted key with its values."
    )

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) < len(seeds):
            raise ValueError("a seed occurs twice")
        return seeds

    @field_validator("grid", mode="before")
    @classmethod
    def _by_dotted_key(cls, tables: Any) -> Any:
        """`swap.period = [2, 4]` is a table in TOML, and one value is an axis of one."""
        if not isinstance(tables, list | tuple):
            return tables
        return [
            {key: v if isinstance(v, list | tuple) else [v] for key, v in flat(table).items()}
            if isinstance(table, Mapping)
            else table
            for table in tables
        ]

    @field_validator("grid")
    @classmethod
    def _filled(cls, tables: tuple[Axes, ...]) -> tuple[Axes, ...]:
        for table in tables:
            if not table:
                raise ValueError("a table has no axis; give it one, or remove it")
            for axis, values in table.items():
                if not values:
                    raise ValueError(f"the axis {axis} has no value")
                if axis == MEMBERS and (unknown := [v for v in values if v not in MEMBERSHIPS]):
                    raise ValueError(
                        f"members is one of {', '.join(MEMBERSHIPS)}, not {unknown[0]!r}"
                    )
        return tables

    def settings(self) -> Iterator[dict[str, Value]]:
        """Each setting once, by dotted key, in the order of the tables and of their values."""
        seen: list[dict[str, Value]] = []
        for table in self.grid or ({},):
            for values in product(*table.values()):
                setting = dict(zip(table, values, strict=True))
                if setting not in seen:
                    seen.append(setting)
                    yield setting

    def runs(self, clients: int) -> int:
        """All runs; where alone, each of so many clients has its own."""
        counts = [clients if s.get(MEMBERS) == "alone" else 1 for s in self.settings()]
        return sum(counts) * len(self.seeds)

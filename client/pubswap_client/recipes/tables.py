"""A recipe's own tables, which are not settings of a run: `[model]`, `[data]` and `[sweep]`."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, Field, field_validator, model_validator

from pubswap_client.data.spec import DataSpec
from pubswap_protocol.bounds import Number
from pubswap_protocol.command_line.keys import flat
from pubswap_protocol.model import ModelCard, check_positions, check_table, model_card
from pubswap_protocol.settings import LoraSettings

PUBLIC, TEST = "public.jsonl", "test.jsonl"


class ModelSource(BaseModel, extra="forbid", frozen=True):
    """`[model]`: a hub id with its revision, or a local folder."""

    source: str = Field(description="Hub id or folder.")
    revision: str | None = Field(default=None, description="Revision on the hub.")
    folder: Path | None = Field(
        default=None, description="Local folder of the files; found automatically."
    )
    stop_token_ids: Annotated[tuple[Number, ...], Field(max_length=16)] = Field(
        default=(),
        description="Tokens that end a response, in addition to the model's eos_token_id.",
    )

    @property
    def location(self) -> str:
        """The folder if it is here, else the hub id."""
        return self.source if self.folder is None else str(self.folder)

    def card(self, folder: Path, lora: LoraSettings, longest: int) -> ModelCard:
        """The card of the files in `folder`, for rows of at most `longest` tokens.

        Raises InvalidSettings if they are no such model.
        """
        card = model_card(folder, lora, self.source, self.revision, self.stop_token_ids)
        config = json.loads((folder / "config.json").read_bytes())
        check_positions(config, longest)
        check_table(config, longest)
        return card


@dataclass(frozen=True)
class DataFiles:
    """The JSONL files of a run; `private` has one for each client, in order."""

    public: Path
    test: Path
    private: tuple[Path, ...] = ()


class RecipeData(BaseModel, extra="forbid", frozen=True):
    """`[data]`: `public` and `test` files, or the `folder` of a split, or how to `prepare` one."""

    public: Path | None = Field(default=None, description="Public problems (JSONL).")
    test: Path | None = Field(default=None, description="Held-out problems (JSONL).")
    private: tuple[Path, ...] = Field(default=(), description="One file for each client.")
    folder: Path | None = Field(
        default=None, description="A folder written by `pubswap data prepare`."
    )
    prepare: DataSpec | None = None

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        named = self.public is not None or self.test is not None or bool(self.private)
        if [named, self.folder is not None, self.prepare is not None].count(True) != 1:
            raise ValueError(
                "give one of: public and test (files), folder (a prepared split), prepare (a table)"
            )
        if named and (self.public is None or self.test is None):
            raise ValueError(f"{'test' if self.public else 'public'} is missing: a JSONL file")
        return self

    def files(self, clients: int, prepared: Path | None = None) -> DataFiles:
        """The paths of the files; `prepared` is the folder of the split that `prepare` made."""
        if self.public is not None and self.test is not None:
            return DataFiles(self.public, self.test, self.private)
        folder = prepared or self.folder
        assert folder is not None, "the split of `data.prepare` must be made first"
        names = [f"client-{number}.jsonl" for number in range(1, clients + 1)]
        return DataFiles(folder / PUBLIC, folder / TEST, tuple(folder / name for name in names))


Value = bool | int | float | str
Axes = dict[str, tuple[Value, ...]]

MEMBERS = "members"  # the axis that is not a setting
Members = Literal["federated", "alone", "pooled", "with-public"]
MEMBERSHIPS = get_args(Members)


class Sweep(BaseModel, extra="forbid", frozen=True):
    """`[sweep]`: seeds, and tables of axes; each table is the product of its axes.

    An axis is a setting by its dotted key, or `members`: federated, each client alone, one client
    with all private sets pooled, or federated with the public set in every private one.
    """

    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        default=(0,), min_length=1, description="Seeds for each setting."
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
        """Flatten tables, as `method.period = [2, 4]` is one; one value is an axis of one."""
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
        """The number of runs; with `members` = alone, each of `clients` has its own."""
        counts = [clients if s.get(MEMBERS) == "alone" else 1 for s in self.settings()]
        return sum(counts) * len(self.seeds)

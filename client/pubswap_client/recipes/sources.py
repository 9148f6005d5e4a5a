"""Where a recipe's base model and problems come from."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pubswap_client.data.spec import DataSpec
from pubswap_protocol.bounds import Number

PUBLIC, TEST = "public.jsonl", "test.jsonl"


class ModelSource(BaseModel):
    """`[model]`: a hub id with its revision, or a local folder."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str = Field(description="A hub id, or a folder.")
    revision: str | None = Field(default=None, description="The hub revision.")
    folder: Path | None = Field(
        default=None, description="Where the files are, if they are here; found by itself."
    )
    stop_token_ids: Annotated[tuple[Number, ...], Field(max_length=16)] = Field(
        default=(),
        exclude_if=lambda ids: not ids,
        description="Tokens that end a response, beside the model's own eos_token_id.",
    )

    @property
    def location(self) -> str:
        """The folder if it is here, else the hub id."""
        return self.source if self.folder is None else str(self.folder)


@dataclass(frozen=True)
class DataFiles:
    """The JSONL files of a run; `private` is client 1's, client 2's, ..."""

    public: Path
    test: Path
    private: tuple[Path, ...] = ()


class RecipeData(BaseModel):
    """`[data]`: `public` and `test` files, or the `folder` of a split, or how to `prepare` one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    public: Path | None = Field(default=None, description="The public problems (JSONL).")
    test: Path | None = Field(default=None, description="The held-out problems (JSONL).")
    private: tuple[Path, ...] = Field(default=(), description="One file for each client.")
    folder: Path | None = Field(default=None, description="What `pubswap data prepare` wrote.")
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
        """Where the files are; `prepared` is the folder that `prepare` was carried out in."""
        if self.public is not None and self.test is not None:
            return DataFiles(self.public, self.test, self.private)
        folder = prepared or self.folder
        assert folder is not None, "the split of `data.prepare` is made first"
        names = [f"client-{number}.jsonl" for number in range(1, clients + 1)]
        return DataFiles(folder / PUBLIC, folder / TEST, tuple(folder / name for name in names))

"""The parameters of a split: source, sizes and division. The same spec gives the same files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from pydantic import BaseModel, Field, ValidationError, model_validator

from pubswap_protocol.errors import InvalidSettings, first_fault

SourceName = Literal["math", "deepmath", "medical", "jsonl"]


class SplitSizes(NamedTuple):
    """The numbers of problems: private (for each client), public, and test."""

    private: int
    public: int
    test: int

    def total(self, clients: int) -> int:
        return clients * self.private + self.public + self.test


_DEFAULTS: Mapping[SourceName, SplitSizes] = {
    "math": SplitSizes(4 * 2500, 1250, 1250),
    "deepmath": SplitSizes(4 * 4000, 3000, 1000),
    "medical": SplitSizes(4 * 3956, 1977, 1977),
}
"""The paper's sizes; `private` is the total of all clients."""

# Data that the paper does not use is divided like its MATH.
_SHARES = (0.8, 0.1, 0.1)


class DataSpec(BaseModel, extra="forbid", frozen=True, populate_by_name=True):
    """The parameters of a split, such as `[data.prepare]` of a recipe."""

    source: SourceName = Field(description="The data set: math, deepmath, medical or jsonl.")
    from_: Path | None = Field(
        default=None,
        alias="from",
        description="Local files in the hub's own format instead of the hub; jsonl: problems.",
    )
    clients: int = Field(
        default=4, gt=0, description="Number of private sets; in a recipe, the run's clients."
    )
    alpha: float = Field(
        default=0.3,
        gt=0,
        allow_inf_nan=False,
        description="Dirichlet parameter of the topics; the smaller, the fewer topics a client "
        "has.",
    )
    seed: int = Field(
        default=0, ge=0, description="Seed of the split; in a recipe by default the run's."
    )
    private_size: int | None = Field(
        default=None, gt=0, description="Problems of each client; by default the paper's."
    )
    public_size: int | None = Field(default=None, gt=0, description="Public problems.")
    test_size: int | None = Field(default=None, gt=0, description="Test problems.")
    verifier: str | None = Field(
        default=None,
        description="jsonl: the verifier of lines that name none; by default the run's.",
    )

    @model_validator(mode="after")
    def _fits_the_source(self) -> Self:
        if self.source != "jsonl" and self.verifier is not None:
            raise ValueError(f"verifier is not for {self.source}, but for jsonl")
        if self.source == "jsonl" and self.from_ is None:
            raise ValueError("from is needed: the JSONL file to divide")
        return self

    @property
    def sizes_known(self) -> bool:
        """Whether the sizes follow from the spec alone, without reading the files."""
        return self.source in _DEFAULTS or None not in (self.private_size, self.public_size)

    def sizes(self, usable: int | None = None) -> SplitSizes:
        """The requested sizes; `usable` is the number of usable problems.

        Sizes that are not given are the paper's, or 80, 10 and 10 per cent of the usable problems
        for data that the paper does not use.
        """
        default = _DEFAULTS.get(self.source)
        if default is None:
            default = SplitSizes(*(int((usable or 0) * share) for share in _SHARES))
        return SplitSizes(
            self.private_size or default.private // self.clients,
            self.public_size or default.public,
            self.test_size or default.test,
        )


def load_spec(values: Mapping[str, Any]) -> DataSpec:
    """A spec from a table of settings; raises InvalidSettings, naming the wrong key."""
    try:
        return DataSpec(**values)
    except ValidationError as error:
        raise InvalidSettings(first_fault(error)) from None

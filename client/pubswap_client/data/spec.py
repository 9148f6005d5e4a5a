"""The parameters of a split: source, sizes and division. The same spec gives the same files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from pubswap_protocol.errors import InvalidSettings, first_fault
from pubswap_protocol.verifiers import verifier_of

SourceName = Literal["math", "deepmath", "medical", "gsm8k", "jsonl", "reasoning-gym"]
Size = Annotated[int, Field(gt=0)]


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
    "reasoning-gym": SplitSizes(4 * 400, 240, 640),
}
"""The paper's sizes, and the demo's for reasoning-gym; `private` is the total of all clients."""

# Data that the paper does not use is divided like its MATH.
_SHARES = (0.8, 0.1, 0.1)

_ONLY_FOR: Mapping[str, tuple[SourceName, ...]] = {
    "from_": ("math", "deepmath", "medical", "gsm8k", "jsonl"),
    "verifier": ("jsonl",),
    "tasks": ("reasoning-gym",),
    "half": ("reasoning-gym",),
}


class DataSpec(BaseModel, extra="forbid", frozen=True, populate_by_name=True):
    """The parameters of a split, such as `[data.prepare]` of a recipe."""

    source: SourceName = Field(
        description="The data set: math, deepmath, medical, gsm8k, jsonl or reasoning-gym."
    )
    from_: Path | None = Field(
        default=None,
        alias="from",
        description="Local files in the hub's own format instead of the hub; jsonl: problems.",
    )
    clients: Size = Field(
        default=4, description="Number of private sets; in a recipe, the run's clients."
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
    private_size: Size | None = Field(
        default=None, description="Problems of each client; by default the paper's."
    )
    public_size: Size | None = Field(default=None, description="Public problems.")
    test_size: Size | None = Field(default=None, description="Test problems.")
    verifier: str | None = Field(
        default=None,
        description="jsonl: the verifier of lines that name none; by default the run's.",
    )
    instruction: str | None = Field(
        default=None,
        description="Instruction at the end of each prompt on how to answer; by default the data "
        "set's own.",
    )
    tasks: dict[str, dict[str, Any]] = Field(
        default={}, description="reasoning-gym: the tasks, each with its generator's settings."
    )
    half: Literal["pretraining", "demo"] | None = Field(
        default=None,
        description="reasoning-gym: only prompts of one half; the base models made here were "
        "pretrained on the half 'pretraining'.",
    )

    @field_validator("tasks", mode="before")
    @classmethod
    def _names_alone(cls, value: Any) -> Any:
        if isinstance(value, list | tuple) and all(isinstance(name, str) for name in value):
            return {name: {} for name in value}
        return value

    @field_validator("verifier")
    @classmethod
    def _verifier_exists(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                verifier_of(value)
            except InvalidSettings as error:
                raise ValueError(error.detail) from None
        return value

    @model_validator(mode="after")
    def _fits_the_source(self) -> Self:
        for key, sources in _ONLY_FOR.items():
            if key in self.model_fields_set and self.source not in sources:
                name = key.rstrip("_")
                raise ValueError(f"{name} is not for {self.source}, but for {', '.join(sources)}")
        if self.source == "jsonl" and self.from_ is None:
            raise ValueError("from is needed: the JSONL file to divide")
        if self.source == "reasoning-gym" and not self.tasks:
            raise ValueError("tasks is needed: names of reasoning-gym tasks, such as chain_sum")
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

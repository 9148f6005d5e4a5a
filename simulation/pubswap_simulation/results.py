"""Results of simulated runs: one `result.json` in each run's own folder.

STORE/runs/KEY/result.json     a complete run; written at its end
STORE/runs/KEY/                exists as soon as a sweep plans the run
STORE/runs/KEY/work/           the coordinator's and the members' state, while it is under way
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError

from pubswap_client.recipes.tables import Members, Value
from pubswap_protocol.command_line.older_settings import converted
from pubswap_protocol.command_line.removed import RENAMED
from pubswap_protocol.errors import InvalidSettings, first_fault
from pubswap_protocol.messages import Evaluation, WholeRun
from pubswap_protocol.methods.registries import REGISTRIES
from pubswap_protocol.methods.registry import NAME, Registrable, Registry
from pubswap_protocol.settings import RunSettings

RUNS = "runs"
RESULT = "result.json"


class DonatedTokens(BaseModel, extra="forbid", frozen=True):
    """Statistics of the donated tokens of a round: means over all of them."""

    round: int
    tokens: int
    probability: float = Field(description="Under the receiver's own policy before each step.")
    clip_share: float = Field(description="The share of them that the clip stops.")


def _recorded(model: type[BaseModel], values: Any) -> Any:
    """Settings with these values, unchecked, and with defaults for those that are missing.

    An older version may have had other settings and other values. Settings that are gone are left
    out here; if a sweep varied them, `Result.setting` has them.
    """
    if not isinstance(values, Mapping):
        return values
    settings = dict(values)
    for name in model.model_fields.keys() & settings.keys():
        default = model.model_fields[name].default
        if isinstance(default, Registrable):
            settings[name] = _named(default, settings[name])
        elif isinstance(default, BaseModel):
            settings[name] = _recorded(type(default), settings[name])
        elif isinstance(settings[name], list):  # JSON's form of a tuple
            with suppress(ValidationError):
                kind = cast(Any, model.model_fields[name].annotation)
                settings[name] = TypeAdapter(kind).validate_python(settings[name])
    return model.model_construct(**settings)


def _named(default: Registrable, value: Any) -> Registrable:
    """A named value; one that is gone has its name and nothing else."""
    base: type[Registrable] = next(
        cls for cls in type(default).__mro__ if Registrable in cls.__bases__
    )
    kind: Registry[Registrable] = next(
        kind for kind in REGISTRIES.values() if type(default) in kind
    )
    with suppress(ValidationError):
        return kind.read(value)
    parameters = dict(value) if isinstance(value, Mapping) else {NAME: value}
    name = parameters.pop(NAME, kind.default)
    if (known := kind.class_of(name)) is not None:
        return cast(Registrable, _recorded(known, parameters))
    gone: type[Registrable] = type("Gone", (base,), {"name": name})
    return gone.model_construct(**dict.fromkeys(base.model_fields))


def _as_today(run: Any) -> Any:
    if not isinstance(run, Mapping) or "settings" not in run:
        return run
    rounds = [_by_todays_names(summary) for summary in run.get("rounds", ())]
    settings = _recorded(RunSettings, converted(run["settings"]))
    return {**run, "settings": settings, "rounds": rounds}


def _by_todays_names(summary: Any) -> Any:
    """A round whose public steps may have been recorded as `swaps`."""
    if not isinstance(summary, Mapping) or "swaps" not in summary:
        return summary
    steps = [{"public_step": step["swap"], **step} for step in summary["swaps"]]
    for step in steps:
        del step["swap"]
    return {**{k: v for k, v in summary.items() if k != "swaps"}, "public_steps": steps}


def _by_todays_axes(setting: Any) -> Any:
    if not isinstance(setting, Mapping):
        return setting
    if setting.get("swap.max_donated_tokens") == 1:  # how older studies switched the exchange off
        setting = {**setting, "method.strategy": "none"}
    return {
        RENAMED.get(axis, axis): value
        for axis, value in setting.items()
        if axis != "swap.max_donated_tokens"
    }


class Result(BaseModel, extra="forbid", frozen=True):
    """One complete run, with everything that a report needs."""

    recipe: str = Field(description="The recipe's name.")
    setting: Annotated[dict[str, Value], BeforeValidator(_by_todays_axes)] = Field(
        description="The run's value on each axis of the sweep, by dotted key; without the seed."
    )
    seed: int
    members: Members = Field(
        default="federated",
        description="federated: N clients. alone: one client with its own private set. pooled: one "
        "client with all private sets, the centralised reference. with-public: N clients, each "
        "with the public set beside its own.",
    )
    client: str | None = Field(default=None, description="The client that trains, for `alone`.")
    run: Annotated[WholeRun, BeforeValidator(_as_today)] = Field(
        description="Settings, and each round's evaluation, drift, exchanges and traffic."
    )
    rewards: dict[str, list[float]] = Field(
        description="Mean reward of own responses at each local step of the whole run, by client."
    )
    topics: dict[str, dict[str, int]] = Field(
        default={}, description="Number of each client's own private problems, by topic."
    )
    donated: tuple[DonatedTokens, ...] = Field(
        default=(), description="One for each round with training on donated responses."
    )
    seconds: float = Field(ge=0)
    code: str | None = Field(
        default=None,
        description="The commit of the code, -dirty if it had changes; None if it is installed.",
    )

    @property
    def evaluations(self) -> list[Evaluation]:
        """The evaluations of rounds 0 (the base model), 1, ..."""
        return [summary.evaluation for summary in self.run.rounds if summary.evaluation]

    @property
    def base(self) -> float:
        """pass@1 of the base model."""
        return self.evaluations[0].pass_at_1

    @property
    def final(self) -> float:
        """pass@1 of the last round's adapter."""
        return self.evaluations[-1].pass_at_1

    @property
    def best(self) -> float:
        """pass@1 of the best round's adapter; the base model does not count."""
        return max(evaluation.pass_at_1 for evaluation in self.evaluations[1:])


def value_of(settings: RunSettings, axis: str) -> Value | None:
    """A setting by its dotted key, such as `method.mu`; a named value's name.

    None for a table, and for what the run's method does not have. The settings are read as parsed,
    because a dump by an older version lacks the defaults added since.
    """
    found: object = settings
    for part in axis.split("."):
        found = getattr(found, part, None)
    found = found.name if isinstance(found, Registrable) else found
    return found if isinstance(found, bool | int | float | str) else None


def read_result(folder: Path) -> Result:
    """The result in a run's folder. What only older versions reported is left out."""
    return Result.model_validate_json((folder / RESULT).read_bytes(), extra="ignore")


def read_results(store: Path) -> Iterator[Result]:
    """All complete runs of a store, in the order of their folders' names.

    Raises InvalidSettings if a file is not a result.
    """
    for path in sorted((store / RUNS).glob(f"*/{RESULT}")):
        try:
            yield read_result(path.parent)
        except ValidationError as error:
            raise InvalidSettings(f"{path} is not a result: {first_fault(error)}") from None


def unfinished(store: Path) -> list[str]:
    """Folder names of the runs that were planned or begun but have no result."""
    folders = sorted(path for path in (store / RUNS).glob("*") if path.is_dir())
    return [folder.name for folder in folders if not (folder / RESULT).exists()]

"""A result's row in a table: its method and every setting of it that is varied."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pubswap_client.recipes.tables import Value
from pubswap_protocol.command_line.keys import flat
from pubswap_protocol.methods.method import FedProx
from pubswap_protocol.methods.strategies import NoExchange
from pubswap_protocol.settings import RunSettings
from pubswap_simulation.results import Result, value_of

Variant = tuple[tuple[str, Value], ...]

SILENT = "public steps without exchange"
NO_EXCHANGE = NoExchange.name
# The order of the paper's tables; names that are not listed come last.
MEMBERS = ("alone", "pooled", "federated")
NAMES = ("fedavg", "fedprox", "pubswap")
STRATEGIES = ("", NO_EXCHANGE, "random", "keep")

# Axes that appear in the row's name or as the table's column; `rounds` follows from the steps.
NAMED = {
    "members",
    "method",
    "local_steps",
    "method.strategy",
    "method.period",
    "method.mu",
    "rounds",
    "total_steps",
}
# A seed is no setting, and a simulation's quorums follow from its clients.
_FOLLOWING = {"seed", "method.quorum", "aggregation.quorum"}
# These axes change the method. Any other changes the problem, so each of its values has a section.
_OF_METHOD = ("method.", "swap.", "aggregation.", "wire.", "grpo.", "lora.")
# The wording of a value on an axis; other axes use the last part of their name.
_WORDS = {
    "members": "public prompts in every private set",  # the one value that is no row by itself
    "grpo.clipping": "{} clipping",
    "method.donor_ratio": "{} donor ratio",
    "grpo.prompts_per_step": "{} prompts a step",
    "grpo.resample": "dead groups resampled {} times",
    "lora.rank": "rank {}",
    "method.mode": "{}",
    "wire.precision": "sent in {}",
    "aggregation.weights": "weighed by {}",
    "aggregation.server_optimizer": "server {}",
}


@dataclass(frozen=True)
class Row:
    """What a table's row compares; `alone` is the mean of the clients, each by itself."""

    members: Literal["alone", "pooled", "federated"] = "federated"
    name: str = "fedavg"
    strategy: str | None = None
    period: int | None = None
    mu: float | None = None
    variant: Variant = ()

    @property
    def label(self) -> str:
        """The row's human-readable name."""
        return ", ".join([self._plain_label, *(_in_words(*varied) for varied in self.variant)])

    @property
    def _plain_label(self) -> str:
        if self.members != "federated":
            return _TITLES[self.members]
        title = _TITLES.get(self.name, self.name)
        if self.mu is not None:
            return f"{title}, μ = {self.mu:g}"
        if self.strategy is None:
            return title
        title = SILENT if self.strategy == NO_EXCHANGE else f"{title}-{self.strategy}"
        return f"{title}, period {self.period}"

    @property
    def order(self) -> tuple[Any, ...]:
        """Sort key: references first, then as in the paper's tables."""
        return (
            _place(self.members, MEMBERS),
            _place(self.name, NAMES),
            _place(self.strategy or "", STRATEGIES),
            self.period or 0,
            self.mu or 0.0,
            [(key, str(value)) for key, value in self.variant],
        )


def _place(name: str, known: Sequence[str]) -> tuple[int, str]:
    """The paper's methods in their order; then a researcher's own, by name."""
    return (known.index(name), "") if name in known else (len(known), name)


_TITLES = {
    "alone": "alone, mean of clients",
    "pooled": "pooled (centralised)",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "pubswap": "PubSwap",
}

FEDAVG = Row()


def _in_words(axis: str, value: Value) -> str:
    name = axis.rpartition(".")[2].replace("_", " ")
    if isinstance(value, bool):
        return f"with {name}" if value else f"without {name}"
    text = value.replace("_", " ") if isinstance(value, str) else value
    return _WORDS.get(axis, name + " {}").format(text)


def edited(results: Iterable[Result]) -> set[str]:
    """Settings that differ between runs though they are no axis: the recipe was edited."""
    alike: dict[object, list[RunSettings]] = defaultdict(list)
    for result in results:
        key = result.members, result.client, frozenset(result.setting.items())
        alike[key].append(result.run.settings)
    return {
        axis
        for group in alike.values()
        for axis in {axis for run in group for axis in flat(run.model_dump())} - _FOLLOWING
        if len({value_of(run, axis) for run in group}) > 1
    }


def references(results: Sequence[Result], axes: Iterable[str]) -> dict[str, Value | None]:
    """The reference value on each axis: the recipe's own, taken from the results whose part of the
    grid does not name the axis and whose method has it; the default if there are none."""
    defaults = RunSettings()
    federated = [result for result in results if result.members == "federated"]
    found = {
        axis: [
            value
            for result in federated
            if axis not in result.setting
            and (value := value_of(result.run.settings, axis)) is not None
        ]
        for axis in axes
    }
    return {
        axis: values[0] if values else value_of(defaults, axis) for axis, values in found.items()
    }


def row_of(result: Result, usual: Mapping[str, Value | None]) -> Row:
    """The row of a result; `usual` has all axes that its recipe varies (see `references`).

    Settings without effect in this run are left out.
    """
    settings = result.run.settings
    exchange = settings.exchange
    # An older result may have varied a setting that its method does not have.
    idle: list[str] = [] if exchange else ["swap.", "method."]
    if result.members in ("alone", "pooled"):
        idle += ["aggregation."]
    variant: Variant = tuple(
        (axis, result.setting.get(axis, "unset") if value is None else value)
        for axis in sorted(usual)
        if is_of_method(axis) and not axis.startswith(tuple(idle))
        if (value := value_on(result, axis)) != usual[axis]
    )
    if result.members == "with-public":
        variant = (("members", result.members), *variant)
    return Row(
        members="federated" if result.members == "with-public" else result.members,
        name=settings.method.name,
        strategy=exchange.strategy.name if exchange else None,
        period=exchange.period if exchange else None,
        mu=settings.method.mu if isinstance(settings.method, FedProx) else None,
        variant=variant,
    )


def is_of_method(axis: str) -> bool:
    """Whether an axis leads to another row rather than another section."""
    return axis not in NAMED and axis.startswith(_OF_METHOD)


def value_on(result: Result, axis: str) -> Value | None:
    """A result's value on an axis, even if its part of the grid does not name it.

    None if only the recipe has it, as with `data.*`, or an older version.
    """
    if axis in result.setting:
        return result.setting[axis]
    return value_of(result.run.settings, axis)

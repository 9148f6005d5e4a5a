"""Compare adapters of one run: pass@1, and differences paired by problem."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from rich.table import Column, Table

from pubswap_client.policy.policy import Policy
from pubswap_protocol.errors import InvalidAdapter, InvalidSettings
from pubswap_protocol.messages import RunView
from pubswap_protocol.tensors.adapter import (
    LARGEST_DERIVED,
    AdapterFile,
    initial_adapter,
    open_stack,
)
from pubswap_protocol.tensors.peft_folder import WEIGHTS

REFERENCE = "all"  # the folder that its siblings are compared with
NORMAL = 1.96  # P(|Z| <= 1.96) = 0.95


@dataclass(frozen=True)
class PairedDifference:
    """pass@1 minus the reference's, and the numbers of problems scored better and worse."""

    reference: str
    mean: float
    half_width: float | None
    better: int
    worse: int


@dataclass(frozen=True)
class Compared:
    """An adapter's pass@1 and half the width of its 95 % interval, None for a single problem."""

    adapter: str
    problems: int
    pass_at_1: float
    half_width: float | None
    difference: PairedDifference | None


def adapter_names(folder: Path) -> list[str]:
    """PEFT folders in `folder` or itself, as relative paths in natural order (10 after 9).

    Raises InvalidSettings if there is none.
    """
    names = [str(path.parent.relative_to(folder)) for path in folder.rglob(WEIGHTS)]
    if not names:
        raise InvalidSettings(
            f"There is no {WEIGHTS} in {folder} or below. `pubswap admin contributions RUN --out "
            "FOLDER` writes some."
        )
    return sorted(names, key=_natural)


def _natural(name: str) -> list[tuple[str, int]]:
    return [(text, int(digits or 0)) for text, digits in re.findall(r"(\D*)(\d*)", name)]


def open_adapter(folder: Path, run: RunView) -> AdapterFile:
    """Open and check a PEFT folder's adapter. Raises InvalidAdapter if it is not of the run.

    It has the run's ranks, or higher ones under FedEx-LoRA, where it includes the residuals.
    """
    layout = run.model.layout
    try:
        file = open_stack(folder / WEIGHTS, layout)
        file.check(LARGEST_DERIVED)
    except InvalidAdapter as error:
        raise InvalidAdapter(f"{folder}: {error.detail} Is it from this run?") from None
    if file.layout != layout and run.settings.aggregation.rule != "fedex":
        raise InvalidAdapter(f"{folder} has other ranks than the run's adapters.")
    return file


def load_stack(policy: Policy, stack: AdapterFile) -> None:
    """Load an adapter. One with other ranks than the run's (FedEx-LoRA) is merged into the base."""
    layout = policy.card.layout
    if stack.layout == layout:
        policy.rebase(())
        policy.load_adapter(stack.load())
    else:
        policy.rebase([stack])
        policy.load_adapter(initial_adapter(layout, policy.settings.seed))  # B = 0: no product


def compared(scored: Mapping[str, Sequence[float]]) -> list[Compared]:
    """Compare adapters by mean reward per problem (P,), also with the sibling `all` if present."""
    comparisons = []
    for name, rewards in scored.items():
        reference = str(Path(name).parent / REFERENCE)
        other = scored.get(reference) if name != reference else None
        difference = None if other is None else _difference(rewards, reference, other)
        mean, half = fmean(rewards), half_width(rewards)
        comparisons.append(Compared(name, len(rewards), mean, half, difference))
    return comparisons


def _difference(
    rewards: Sequence[float], reference: str, others: Sequence[float]
) -> PairedDifference:
    values = [a - b for a, b in zip(rewards, others, strict=True)]
    better, worse = sum(value > 0 for value in values), sum(value < 0 for value in values)
    return PairedDifference(reference, fmean(values), half_width(values), better, worse)


def half_width(values: Sequence[float]) -> float | None:
    """1.96 s / sqrt(n), half the width of a mean's 95 % interval; None for a single value."""
    if len(values) < 2:
        return None
    return NORMAL * stdev(values) / math.sqrt(len(values))


def table(comparisons: Sequence[Compared]) -> Table:
    """A table for people: means with half the width of their 95 % intervals."""
    rendered = Table(
        Column("adapter", overflow="fold"),
        Column("pass@1", justify="right", no_wrap=True),
        Column("against all", justify="right", no_wrap=True),
        *(Column(heading, justify="right") for heading in ("better", "worse")),
        caption=f"± is half of the 95 % interval; test problems: {comparisons[0].problems}",
    )
    for comparison in comparisons:
        other = comparison.difference
        rendered.add_row(
            comparison.adapter,
            _text(comparison.pass_at_1, comparison.half_width),
            _text(other.mean, other.half_width, "+") if other else "",
            *((str(other.better), str(other.worse)) if other else ("", "")),
        )
    return rendered


def _text(mean: float, half: float | None, sign: str = "") -> str:
    return f"{mean:{sign}.3f}" + ("" if half is None else f" ± {half:.3f}")

"""Privacy accounting: the epsilon of the releases made so far.

A release is one private step. Each of the n records joins its batch with probability q = b / n,
independently of the others (Poisson sampling, by a secret draw). Each of its E epochs publishes a
sum of gradients, one per record and each of norm at most C, plus N(0, (sigma C)^2) on every entry.
The E epochs use one batch, so together they reveal as much as one Gaussian mechanism with noise
multiplier sigma / sqrt(E) (Dong, Roth and Su, "Gaussian differential privacy", 2022), which is
then subsampled (Zhu, Dong and Wang, "Optimal accounting of differential privacy", 2022). Releases
are composed adaptively by their privacy loss distribution, rounded up (dp-accounting's PLD
accountant).

Neighbouring data sets differ in one record, which contributes nothing in one of them; n is known.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.schedule import private_steps_per_round
from pubswap_protocol.settings import RunSettings

if TYPE_CHECKING:
    from dp_accounting import DpEvent

# Privacy losses are rounded up to multiples of this, and to finer ones if there are more than
# GRID_STEPS steps. That raises epsilon by at most a few hundredths, however long the run.
LOSS_GRID, GRID_STEPS = 5e-3, 100
LEAST_NOISE = 0.1  # lower end of the search; one release with it has an epsilon of 70 to 90
_STRIDE, _TOLERANCE = 1.25, 1e-4  # of the search


@dataclass(frozen=True, slots=True, order=True)
class Releases:
    """Private steps with the same parameters."""

    rate: float  # q
    noise_multiplier: float  # sigma
    epochs: int  # E
    steps: int


def delta_of(records: int) -> float:
    """delta for n records: min(1e-5, 1 / (10 n))."""
    return min(1e-5, 1 / (10 * records))


def epsilon_of(releases: Sequence[Releases], delta: float) -> float:
    """The epsilon of all releases together, in any order."""
    steps: Counter[Releases] = Counter()
    for release in releases:
        steps[replace(release, steps=0)] += release.steps
    kinds = sorted(replace(kind, steps=count) for kind, count in steps.items())
    return _epsilon(tuple(kinds), delta)


def releases_of_round(settings: RunSettings, records: int) -> Releases:
    """The releases of one round, with the least noise that keeps the whole run within its epsilon.

    Raises InvalidSettings if dp-accounting is not installed.
    """
    check_installed(settings)
    assert settings.privacy is not None
    target, grpo = settings.privacy.epsilon, settings.grpo
    steps = private_steps_per_round(settings)
    rate = min(1.0, grpo.prompts_per_step / records)
    whole = Releases(rate, 0.0, grpo.gradient_epochs, steps * settings.rounds)
    noise = _noise_multiplier(whole, target, delta_of(records)) if steps else 0.0
    return replace(whole, noise_multiplier=noise, steps=steps)


def check_installed(settings: RunSettings) -> None:
    """Raises InvalidSettings if a run is private and dp-accounting is not installed."""
    if settings.privacy is not None and find_spec("dp_accounting") is None:
        raise InvalidSettings(
            f"The run has privacy.epsilon = {settings.privacy.epsilon:g}, and dp-accounting is "
            "not installed. Install PubSwap's extra for it, in its checkout: "
            "pip install '.[dp]'"
        )


@cache
def _epsilon(releases: tuple[Releases, ...], delta: float) -> float:
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import PLDAccountant

    grid = _grid(sum(release.steps for release in releases))
    accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE, grid)
    for release in releases:
        if release.steps:
            accountant.compose(_event(release))
    with np.errstate(over="ignore"):  # a quotient becomes infinite, as it should
        return float(accountant.get_epsilon(delta))


@cache
def _noise_multiplier(whole: Releases, target: float, delta: float) -> float:
    """The least sigma, but LEAST_NOISE, with which all releases together keep the target."""
    from dp_accounting import LowerEndpointAndGuess, calibrate_dp_mechanism
    from dp_accounting.mechanism_calibration import NoBracketIntervalFoundError
    from dp_accounting.rdp import RdpAccountant

    def noised(sigma: float) -> Releases:
        return replace(whole, noise_multiplier=sigma)

    def enough(sigma: float) -> bool:
        return _epsilon((noised(sigma),), delta) <= target

    # Begin near the result, which Renyi divergence finds at once: with far less noise, the losses
    # of many steps are so large that they take minutes and gigabytes.
    renyi = partial(RdpAccountant, orders=range(2, 257))
    guess = LowerEndpointAndGuess(LEAST_NOISE, 1.0)
    try:
        low = float(
            calibrate_dp_mechanism(
                renyi, lambda sigma: _event(noised(sigma)), target, delta, guess, tol=1e-2
            )
        )
    except NoBracketIntervalFoundError:
        low = LEAST_NOISE
    while enough(low):
        if low == LEAST_NOISE:
            return LEAST_NOISE
        low = max(LEAST_NOISE, low / _STRIDE)
    high = low * _STRIDE
    while not enough(high):
        high *= _STRIDE
    while high > (1 + _TOLERANCE) * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _grid(steps: int) -> float:
    """The unit of the losses: rounding adds about its square to epsilon at each step."""
    return LOSS_GRID * math.sqrt(GRID_STEPS / max(steps, GRID_STEPS))


def _event(releases: Releases) -> "DpEvent":
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

    together = GaussianDpEvent(releases.noise_multiplier / math.sqrt(releases.epochs))
    return SelfComposedDpEvent(PoissonSampledDpEvent(releases.rate, together), releases.steps)

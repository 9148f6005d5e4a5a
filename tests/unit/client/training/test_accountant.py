"""Epsilon: against published figures, a formula by hand, and an integral."""

import math
from dataclasses import replace
from importlib.util import find_spec
from statistics import NormalDist

import numpy as np
import pytest

from pubswap_client.training import accountant
from pubswap_client.training.accountant import (
    Releases,
    check_installed,
    delta_of,
    epsilon_of,
    releases_of_round,
)
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.settings import PrivacySettings, RunSettings

PHI = NormalDist().cdf


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """Epsilon of one Gaussian mechanism: Balle and Wang (2018), theorem 8, solved by bisection.

    delta = Phi(1 / 2s - e s) - exp(e) Phi(-1 / 2s - e s), where s is the noise multiplier.
    """
    low, high = 0.0, 100.0
    for _ in range(100):
        middle = (low + high) / 2
        half, part = 1 / (2 * noise_multiplier), middle * noise_multiplier
        left = PHI(half - part) - math.exp(middle) * PHI(-half - part)
        low, high = (middle, high) if left > delta else (low, middle)
    return high


@pytest.mark.parametrize(
    ("sigma", "epochs", "steps"), [(4.0, 1, 1), (5.0, 2, 12), (20.0, 1, 90), (900.0, 2, 10_000)]
)
def test_without_sampling_it_is_the_gaussian_mechanism_s(
    sigma: float, epochs: int, steps: int
) -> None:
    """T releases of E epochs equal one of noise multiplier sigma / sqrt(T E), up to 0.02 above.

    It is below the bound from Renyi divergence, T E a / 2 sigma^2 + log(1 / delta) / (a - 1).
    """
    found = epsilon_of([Releases(1.0, sigma, epochs, steps)], 1e-5)
    exact = gaussian_epsilon(sigma / math.sqrt(epochs * steps), 1e-5)
    assert exact <= found < exact + 0.02
    rho = epochs * steps / (2 * sigma**2)
    renyi = rho + 2 * math.sqrt(rho * math.log(1e5))  # for the best order
    assert found < renyi


def test_with_sampling_it_is_what_an_integral_gives() -> None:
    """delta = E_Q[(P / Q - e^epsilon)_+] for P = (1 - q) N(0, s^2) + q N(1, s^2), Q = N(0, s^2)."""
    rate, sigma = 0.05, 0.8
    found = epsilon_of([Releases(rate, sigma, 1, 1)], 1e-5)
    x = np.linspace(-20, 30, 1_000_001)

    def density(mean: float) -> np.ndarray:
        return np.exp(-0.5 * ((x - mean) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))

    q, p = density(0.0), (1 - rate) * density(0.0) + rate * density(1.0)

    def delta(epsilon: float) -> float:
        removed = np.clip(p - math.exp(epsilon) * q, 0, None)
        added = np.clip(q - math.exp(epsilon) * p, 0, None)
        return float(max(removed.sum(), added.sum()) * (x[1] - x[0]))

    assert delta(found) <= 1e-5 * 1.001
    assert delta(found - 0.02) > 1e-5


def test_it_is_below_the_published_figure_of_the_renyi_accountant() -> None:
    """TensorFlow Privacy's tutorial, MNIST: noise 1.1, batches of 256, 60 epochs, delta 1e-5.

    The Renyi accountant gives 3.01; privacy loss distributions give less.
    """
    found = epsilon_of([Releases(256 / 60_000, 1.1, 1, 60 * 60_000 // 256)], 1e-5)
    assert 2.0 < found < 3.01


def test_releases_of_one_kind_add_up_and_several_kinds_compose() -> None:
    """In any order; no release costs nothing."""
    one, other = Releases(0.02, 1.0, 2, 12), Releases(0.04, 1.2, 1, 3)
    both = epsilon_of([one, other], 1e-5)
    assert both == epsilon_of([other, one], 1e-5) > epsilon_of([one], 1e-5)
    assert epsilon_of([one, one], 1e-5) == epsilon_of([replace(one, steps=24)], 1e-5)
    assert epsilon_of([], 1e-5) == 0
    assert (delta_of(50), delta_of(10**6)) == (1e-5, 1e-7)


@pytest.mark.parametrize(
    ("epsilon", "records", "b", "tau", "rounds"),
    [
        (8.0, 400, 8, 8, 6),
        (0.1, 8, 8, 40, 9),
        (1.0, 2500, 8, 120, 3),
        pytest.param(100.0, 10_000, 1, 1, 1, marks=pytest.mark.full),
    ],
)
def test_a_runs_noise_is_the_least_that_keeps_its_epsilon(
    epsilon: float, records: int, b: int, tau: int, rounds: int
) -> None:
    """All rounds together stay within the target; one per cent less noise would exceed it."""
    values = {"method": "fedavg", "local_steps": tau, "rounds": rounds}
    values |= {"grpo": {"prompts_per_step": b}, "privacy": {"epsilon": epsilon}}
    one = releases_of_round(RunSettings.model_validate(values), records)
    assert (one.rate, one.epochs, one.steps) == (b / records, 2, tau)
    delta = delta_of(records)
    assert epsilon_of(rounds * [one], delta) <= epsilon
    less = replace(one, noise_multiplier=0.99 * one.noise_multiplier)
    assert epsilon_of(rounds * [less], delta) > epsilon


@pytest.mark.parametrize(
    ("tau", "rounds"), [(8, 6), (100, 100), pytest.param(1000, 1000, marks=pytest.mark.full)]
)
def test_a_run_that_always_takes_every_prompt_has_the_gaussian_mechanism_s_noise(
    tau: int, rounds: int
) -> None:
    """However many steps it has, and if it has fewer prompts than a step asks for."""
    values = {"method": "fedavg", "local_steps": tau, "rounds": rounds}
    settings = RunSettings.model_validate(values | {"privacy": {"epsilon": 0.5}})
    one = releases_of_round(settings, 5)
    assert one.rate == 1
    together = one.noise_multiplier / math.sqrt(one.epochs * tau * rounds)
    assert 0.48 < gaussian_epsilon(together, delta_of(5)) <= 0.5


def test_a_run_of_one_release_has_noise_however_large_its_epsilon() -> None:
    """The search has a minimum, which keeps a smaller epsilon than asked for."""
    settings = RunSettings.model_validate(
        {
            "method": "fedavg",
            "rounds": 1,
            "local_steps": 1,
            "grpo": {"gradient_epochs": 1},
            "privacy": {"epsilon": 100.0},
        }
    )
    one = releases_of_round(settings, 400)
    assert one.noise_multiplier == 0.1
    assert epsilon_of([one], 1e-5) < 100


def test_a_run_of_public_steps_alone_costs_nothing() -> None:
    """It releases nothing private."""
    settings = RunSettings.model_validate({"method": {"period": 1}, "privacy": {"epsilon": 1.0}})
    one = releases_of_round(settings, 100)
    assert (one.steps, epsilon_of([one], 1e-5)) == (0, 0)


def test_without_the_extra_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a model is loaded; a run without privacy does not need it."""
    monkeypatch.setattr(
        accountant, "find_spec", lambda name: None if name == "dp_accounting" else find_spec(name)
    )
    check_installed(RunSettings())
    with pytest.raises(InvalidSettings, match=r"privacy\.epsilon = 8.*pip install '\.\[dp\]'"):
        check_installed(RunSettings(privacy=PrivacySettings(epsilon=8.0)))

"""The file of a member's spent privacy: what a restart takes from it."""

import json
from pathlib import Path

import pytest

from pubswap_client.state.privacy import PrivacyBudget
from pubswap_protocol.settings import PrivacySettings, RunSettings

SETTINGS = RunSettings(
    method="fedavg", local_steps=2, rounds=2, privacy=PrivacySettings(epsilon=8.0)
)


def test_a_run_keeps_the_noise_that_it_began_with(tmp_path: Path) -> None:
    """Its round was paid for with that. With another number of prompts, the noise is anew."""
    first = PrivacyBudget(tmp_path, "run", SETTINGS, 400)
    first.pay(1)
    path = tmp_path / "privacy-budget.json"
    stored = json.loads(path.read_text())
    stored["runs"]["run"][0]["noise_multiplier"] *= 2  # as an earlier accountant asked for
    path.write_text(json.dumps(stored))
    again = PrivacyBudget(tmp_path, "run", SETTINGS, 400)
    assert again.releases(2).noise_multiplier == 2 * first.releases(2).noise_multiplier
    again.pay(2)
    assert again.spent[0] == again.spent[1]
    assert again.epsilon < 8.0
    fewer = PrivacyBudget(tmp_path, "run", SETTINGS, 200)
    assert fewer.releases(3).noise_multiplier != again.releases(3).noise_multiplier
    assert fewer.releases(3).noise_multiplier > first.releases(3).noise_multiplier


def test_a_step_has_the_rate_and_the_noise_that_its_round_was_paid_for(tmp_path: Path) -> None:
    """Also if the private prompts are fewer since, so that a round costs more from now on."""
    PrivacyBudget(tmp_path, "run", SETTINGS, 400).pay(1)
    fewer = PrivacyBudget(tmp_path, "run", SETTINGS, 40)
    fewer.pay(2)
    for beginning, paid in enumerate(fewer.spent, start=1):
        noise = fewer.draws.noise(beginning, 1, 1)
        assert noise.noise_multiplier == paid.noise_multiplier
        steps = [fewer.draws.batch(40, beginning, 1, step) for step in range(500)]
        share = sum(map(len, steps)) / (40 * len(steps))
        assert share == pytest.approx(paid.rate, rel=0.1)
    assert fewer.spent[1].rate == 10 * fewer.spent[0].rate

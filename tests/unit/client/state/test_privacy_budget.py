"""The file of a member's spent privacy: what a restart takes from it."""

import json
from pathlib import Path

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
    assert again.draws.noise_multiplier == 2 * first.draws.noise_multiplier
    again.pay(2)
    assert again.spent[0] == again.spent[1]
    assert again.epsilon < 8.0
    fewer = PrivacyBudget(tmp_path, "run", SETTINGS, 200)
    assert fewer.draws.noise_multiplier != again.draws.noise_multiplier
    assert fewer.draws.noise_multiplier > first.draws.noise_multiplier

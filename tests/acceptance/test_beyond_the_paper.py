"""Whole runs with settings that go beyond the paper."""

from pathlib import Path
from typing import Any

import pytest

from support.client.simulations import CLIENTS, adapter_of, options_of, simulated, write_recipe
from support.coordinator.processes import federated_adapter

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("unmeasured")]

PERIOD_2 = {"local_steps": 4, "method.period": 2}


def test_donor_ratios_train_different_adapters(tmp_path: Path) -> None:
    """The donors' log-probabilities affect the receiver's objective, but only if configured."""
    recipe = write_recipe(tmp_path / "recipe")
    adapters = set()
    for ratio in ("local", "decoupled"):
        settings = {
            "rounds": 1,
            "method.period": 2,
            "method.donor_ratio": ratio,
        }
        [result], _ = simulated(recipe, tmp_path / ratio, *options_of(settings))
        assert (
            sum(
                public_step.replaced
                for summary in result.run.rounds
                for public_step in summary.public_steps
            )
            > 0
        )
        adapters.add(result.run.rounds[-1].adapter)
    assert len(adapters) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"method.donor_ratio": "decoupled", "grpo.clipping": "sequence"},
    ],
    ids=["decoupled, by sequence"],
)
def test_a_run_with_these_settings_trains_another_adapter(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    """It finishes, with the usual number of exchanges."""
    recipe, runs = write_recipe(tmp_path / "recipe"), []
    for number, given in enumerate(({}, changes)):
        [result], _ = simulated(recipe, tmp_path / str(number), *options_of(given))
        runs.append(result.run)
    plain, changed = runs
    assert plain.rounds[-1].adapter != changed.rounds[-1].adapter
    exchanges = [[len(each.public_steps) for each in run.rounds] for run in runs]
    assert exchanges[0] == exchanges[1]


def test_everything_beyond_the_paper_is_bit_identical_in_any_order(tmp_path: Path) -> None:
    """Pipelined and resampled steps.

    It compares daemons that start in another order with a simulation.
    """
    settings = {
        **PERIOD_2,
        "method.mode": "pipelined",
        "grpo.resample": 2,
    }
    view, adapter = federated_adapter(tmp_path / "daemons", settings, order=CLIENTS[::-1])
    recipe, store = write_recipe(tmp_path / "recipe"), tmp_path / "store"
    simulated(recipe, store, *options_of(settings), "--keep-adapters")
    assert adapter_of(store) == adapter
    assert [len(summary.public_steps) for summary in view.rounds] == [0, 2, 2]
    assert all(
        public_step.clients == 2 for summary in view.rounds for public_step in summary.public_steps
    )
    assert (
        sum(public_step.replaced for summary in view.rounds for public_step in summary.public_steps)
        > 0
    )
    for name in CLIENTS:
        lines = (tmp_path / "daemons" / "logs" / f"{name}.log").read_text().splitlines()
        steps = [line for line in lines if "reward" in line]
        assert [("public" in line, "1 late" in line) for line in steps] == 2 * [
            (False, False),
            (False, False),
            (True, True),
            (True, False),
        ]

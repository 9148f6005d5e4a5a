"""Whole runs with settings that go beyond the paper."""

from pathlib import Path
from typing import Any

import pytest

from support.client.simulations import CLIENTS, adapter_of, options_of, simulated, write_recipe
from support.coordinator.processes import federated_adapter

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("unmeasured")]

PERIOD_2 = {"local_steps": 4, "swap.period": 2}


def test_donor_ratios_train_three_different_adapters(tmp_path: Path) -> None:
    """The donors' log-probabilities affect the receiver's objective, but only if configured."""
    recipe = write_recipe(tmp_path / "recipe")
    adapters = set()
    for ratio in ("local", "donor", "decoupled"):
        settings = {
            "rounds": 1,
            "swap.period": 2,
            "grpo.donor_ratio": ratio,
        }
        [result], _ = simulated(recipe, tmp_path / ratio, *options_of(settings))
        assert sum(swap.replaced for summary in result.run.rounds for swap in summary.swaps) > 0
        adapters.add(result.run.rounds[-1].adapter)
    assert len(adapters) == 3


@pytest.mark.parametrize(
    "changes",
    [
        {"swap.schedule": "late", "swap.replay": True, "grpo.clipping": "soft"},
        {"grpo.learning_rate_shape": "decay", "grpo.clipping": "asymmetric"},
        {"swap.schedule": "early", "grpo.donor_ratio": "shaped", "grpo.clipping": "sequence"},
    ],
    ids=["late, replay, soft", "decay, asymmetric", "early, shaped, by sequence"],
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
    exchanges = [[len(each.swaps) for each in run.rounds] for run in runs]
    assert exchanges[0] == exchanges[1]


def test_fedex_and_keep_go_together(tmp_path: Path) -> None:
    """Donated responses and a changing base model give equal bits in one process and in daemons."""
    settings = {"local_steps": 4, "swap.period": 2, "aggregation.rule": "fedex"}
    recipe, store = write_recipe(tmp_path / "recipe"), tmp_path / "store"
    [result], _ = simulated(recipe, store, *options_of(settings), "--keep-adapters")
    assert len(result.run.rounds) == 3
    for summary in result.run.rounds[1:]:
        assert sum(swap.replaced for swap in summary.swaps) > 0
        assert summary.evaluation is not None
    view, adapter = federated_adapter(tmp_path / "daemons", settings, order=CLIENTS)
    assert adapter_of(store) == adapter
    assert [summary.swaps for summary in view.rounds] == [
        summary.swaps for summary in result.run.rounds
    ]
    [plain], _ = simulated(
        recipe, tmp_path / "mean", *options_of(settings | {"aggregation.rule": "fedit"})
    )
    assert plain.run.rounds[-1].adapter != result.run.rounds[-1].adapter


def test_everything_beyond_the_paper_is_bit_identical_in_any_order(tmp_path: Path) -> None:
    """Informative prompts, likely donors, replay, pipelined, overlapping and resampled steps.

    It compares daemons that start in another order with a simulation.
    """
    settings = {
        **PERIOD_2,
        "swap.prompts": "informative",
        "swap.donors": "likely",
        "swap.mode": "pipelined",
        "swap.replay": True,
        "grpo.overlap": 1,
        "grpo.resample": 2,
    }
    view, adapter = federated_adapter(tmp_path / "daemons", settings, order=CLIENTS[::-1])
    recipe, store = write_recipe(tmp_path / "recipe"), tmp_path / "store"
    simulated(recipe, store, *options_of(settings), "--keep-adapters")
    assert adapter_of(store) == adapter
    assert [len(summary.swaps) for summary in view.rounds] == [0, 2, 2]
    assert all(swap.clients == 2 for summary in view.rounds for swap in summary.swaps)
    assert sum(swap.replaced for summary in view.rounds for swap in summary.swaps) > 0
    for name in CLIENTS:
        lines = (tmp_path / "daemons" / "logs" / f"{name}.log").read_text().splitlines()
        steps = [line for line in lines if "reward" in line]
        assert [("public" in line, "1 late" in line) for line in steps] == 2 * [
            (False, False),
            (False, True),
            (True, True),
            (True, False),
        ]

"""A member's own limits on a round."""

from dataclasses import replace
from typing import Any

import pytest

from pubswap_client.daemon.own_settings import RoundLimits
from pubswap_client.settings import ClientSettings
from pubswap_client.training.metrics import StepMetrics
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.settings import RunSettings

RUN = RunSettings(local_steps=8, members={"fewest_steps": 2})
STEP = StepMetrics(0, 0, 0, 0, 0, 0, 0, seconds=3, grad_norm=0, waited=1)


@pytest.mark.parametrize(
    ("own", "made"),
    [({}, 8), ({"round_steps": 3}, 3), ({"round_steps": 2}, 2)],
)
def test_a_round_ends_at_its_limit(own: dict[str, Any], made: int) -> None:
    """Steps of an earlier process count."""
    limits = RoundLimits.of(ClientSettings(**own), RUN)
    over = [limits.over([replace(STEP)] * done) for done in range(8)]
    assert (over.index(True) if True in over else 8) == made


@pytest.mark.parametrize(
    ("own", "run", "said"),
    [
        ({"round_steps": 3}, {}, "accepts only updates of all 40"),
        ({"round_steps": 1}, {"members": {"fewest_steps": 2}}, "below 2, the fewest local steps"),
    ],
)
def test_limits_that_the_run_does_not_allow_are_refused(
    own: dict[str, Any], run: dict[str, Any], said: str
) -> None:
    """Before training, with what to do."""
    with pytest.raises(InvalidSettings, match=said):
        RoundLimits.of(ClientSettings(**own), RunSettings(**run))

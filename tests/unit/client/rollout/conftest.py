"""Policies for several kinds of model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pubswap_client.policy.policy import Policy
from pubswap_protocol.model import ModelCard
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import Adapter


@pytest.fixture
def make_policy(
    make_model: Callable[..., Path],
    card_of: Callable[[Path], ModelCard],
    run_settings: RunSettings,
    random_adapter: Callable[..., Adapter],
) -> Callable[..., Policy]:
    """A function (kind, **config) that makes a policy with an adapter that changes its outputs."""

    def make(kind: str, **changes: Any) -> Policy:
        folder = make_model(kind, **changes)
        policy = Policy.load(folder, card_of(folder), run_settings, device="cpu")
        policy.load_adapter(random_adapter(policy.card.layout, seed=1))
        return policy

    return make

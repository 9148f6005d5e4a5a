"""The question asked of every loaded model: do packs compute what it computes?"""

from collections.abc import Callable
from pathlib import Path

import pytest

from pubswap_client.policy.logprobs import check_packed_path, packed_difference
from pubswap_client.policy.policy import Policy
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.model import ModelCard
from pubswap_protocol.settings import RunSettings


@pytest.mark.parametrize(
    "fixture", ["tiny_qwen3", "tiny_llama", "tiny_untied_qwen2", "tiny_sliding_mistral"]
)
def test_the_usual_architectures_pass(
    request: pytest.FixtureRequest,
    fixture: str,
    card_of: Callable[[Path], ModelCard],
    run_settings: RunSettings,
) -> None:
    """By a wide margin, in float32."""
    folder = request.getfixturevalue(fixture)
    policy = Policy.load(folder, card_of(folder), run_settings, device="cpu")
    check_packed_path(policy)
    assert packed_difference(policy) < 1e-4


def test_an_architecture_that_does_more_is_refused(
    make_model: Callable[..., Path],
    card_of: Callable[[Path], ModelCard],
    run_settings: RunSettings,
) -> None:
    """Granite scales its logits: training it without that would be silently wrong."""
    folder = make_model("granite", logits_scaling=8.0)
    policy = Policy.load(folder, card_of(folder), run_settings, device="cpu")
    with pytest.raises(InvalidSettings, match="GraniteForCausalLM cannot be trained yet"):
        check_packed_path(policy)

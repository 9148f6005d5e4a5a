"""Gradient checkpointing: the same numbers as without, whatever the config says of dropout."""

from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from packaging.version import Version
from torch import Tensor
from transformers import AutoConfig

from pubswap_client.policy.groups import Batch, Group, collate
from pubswap_client.policy.logprobs import score_pack
from pubswap_client.policy.packing import pack
from pubswap_client.policy.policy import Policy
from pubswap_client.policy.self_check import check_packed_path
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.model import model_card
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.responses import Response
from support.client.architectures import SETTINGS
from support.models.every_model import save_small


def load(folder: Path, kind: str) -> Policy:
    """A small random model with a dropout of 0.1 everywhere in its config."""
    save_small(folder, kind)
    config = AutoConfig.from_pretrained(folder)
    for name in [name for name in config.to_dict() if "dropout" in name]:
        setattr(config, name, 0.1)
    config.save_pretrained(folder)
    values = SETTINGS.model_dump()
    if kind == "jetmoe":
        values["lora"]["target_modules"] = ["kv_proj"]
    run = RunSettings.model_validate(values)
    return Policy.load(folder, model_card(folder, run.lora, "m", None), run, device="cpu")


def scored(policy: Policy, batch: Batch, checkpointing: bool) -> tuple[Tensor, Tensor]:
    """Log-probabilities, and the gradient of a weighted sum of them."""
    with policy.packed(checkpointing):
        scores = score_pack(policy, pack(batch, range(batch.rows), policy.device), 1.0).logprobs
        weights = torch.arange(len(scores)).cos()
        gradients = torch.autograd.grad((scores * weights).sum(), policy.trainable())
    return scores.detach(), torch.cat([each.flatten() for each in gradients])


# Some older versions of transformers compute Doge otherwise, and the self-check refuses it.
OLDER = Version(version("transformers")) < Version("5.24")
DOGE = pytest.param("doge", marks=pytest.mark.skipif(OLDER, reason="this version's Doge differs"))


@pytest.mark.parametrize("kind", ["opt", "biogpt", "falcon", DOGE, "jetmoe"])
@pytest.mark.filterwarnings("ignore")  # transformers and PEFT warn about unusual models
def test_dropout_in_the_config_changes_nothing(kind: str, tmp_path: Path) -> None:
    """Log-probabilities and gradients are the same with checkpointing and without."""
    policy = load(tmp_path, kind)
    check_packed_path(policy, checkpointing=True)
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for factor in policy.factors():
            factor.normal_(0, 0.2, generator=generator)
    tokens = torch.randint(2, policy.card.vocabulary, (4, 12), generator=generator)
    responses = [
        Response(row[:count].int().numpy(), torch.zeros(count).numpy())
        for row, count in zip(tokens, (12, 3, 1, 7), strict=True)
    ]
    batch = collate([Group([5, 6, 7, 8], responses[:2], [0, 0]), Group([9], responses[2:], [0, 0])])
    scores, gradient = scored(policy, batch, checkpointing=False)
    again, recomputed = scored(policy, batch, checkpointing=True)
    assert (again - scores).abs().max() <= 1e-5
    assert (recomputed - gradient).norm() <= 1e-5 * gradient.norm()
    assert not any(module.training for module in policy.model.modules())


@pytest.mark.filterwarnings("ignore")
def test_a_model_without_such_layers_is_refused_before_a_step(tmp_path: Path) -> None:
    """In one sentence about the setting; without the setting, the model trains."""
    policy = load(tmp_path, "gpt_neox_japanese")
    with pytest.raises(InvalidSettings, match=r"cannot recompute .* remove gradient_checkpointing"):
        check_packed_path(policy, checkpointing=True)
    assert check_packed_path(policy).path == "padded"

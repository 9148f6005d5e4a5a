"""A small random model of each of transformers' causal architectures, as a folder.

One of a few sets of sizes fits most configs; `PARTICULAR` has what some need besides.
`scripts/make_models_page.py` writes into docs/models.md how each trains.
"""

import json
import re
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from pubswap_client.policy.loading import load_model
from pubswap_client.policy.padded import PADDED
from pubswap_client.policy.policy import Policy
from pubswap_client.policy.self_check import check_packed_path
from pubswap_client.rollout.transformers_engine import SamplingParameters, TransformersEngine
from pubswap_protocol.base import text_model
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.model import model_card, target_modules
from pubswap_protocol.settings import RunSettings
from support.client.architectures import CASES, COMMON, MOE, SETTINGS
from support.client.models import save_tokenizer
from support.models.published import GEMMA_4

LARGEST = 1_000_000  # parameters
NOT_BUILT = "not tested: no small model of these could be built"
UNLISTED = ("refused", "not tested")  # ways that docs/models.md does not list
ILL_SIZED = ("deepseek_v4", "inkling_text")  # their caches do not fit these sizes
TABLE = Path(text_model.__file__).with_name("text_models.json")
STATE_SPACE = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_n_groups": 1,
    "mamba_d_state": 4,
    "mamba_d_ssm": 64,
    "mamba_chunk_size": 8,
    "state_size": 4,
}
LINEAR = CASES["Qwen3.5"].config
OLD_NAMES = {
    **{"n_embd": 32, "n_head": 4, "n_layer": 2, "d_model": 32, "n_heads": 4, "n_layers": 2},
    **{"ffn_dim": 48, "word_embed_proj_dim": 32, "rotary_dim": 4, "is_decoder": True},
    **{"encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48},
    **{"encoder_attention_heads": 4, "decoder_attention_heads": 4},
}
EXPERTS = CASES["DeepSeek-V3"].config | {
    "n_shared_experts": 1,
    "moe_num_experts": 4,
    "moe_k": 2,
    "moe_topk": 2,
    "num_experts_per_token": 2,
    "shared_expert_intermediate_size": 16,
    "shared_intermediate_size": 48,
    "intermediate_size_mlp": 48,
    "attention_chunk_size": 16,
    "sliding_window": 16,
    "block_ff_dim": 48,
    "query_pre_attn_scalar": 8,
    "head_dim": 8,
}
SIZES: tuple[dict[str, Any], ...] = (
    COMMON,
    COMMON | MOE,
    COMMON | OLD_NAMES,
    COMMON | OLD_NAMES | STATE_SPACE | EXPERTS | {k: v for k, v in LINEAR.items() if "_num_" in k},
    COMMON | OLD_NAMES | STATE_SPACE | EXPERTS | LINEAR,
)
PARTICULAR: dict[str, dict[str, Any]] = {
    case.kind: case.config for case in reversed(CASES.values())
} | {
    "gemma4_text": GEMMA_4,
    "nemotron_h": STATE_SPACE
    | {
        "layers_block_type": ["mamba", "attention"],
        "ssm_state_size": 4,
        "mamba_num_heads": 8,
        "mamba_head_dim": 8,
        "n_groups": 1,
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2},
    "zamba": STATE_SPACE | {"layers_block_type": ["mamba", "hybrid"], "n_mamba_heads": 2},
    "zamba2": STATE_SPACE
    | {
        "num_hidden_layers": 3,
        "layers_block_type": ["mamba", "mamba", "hybrid"],
        "mamba_headdim": 8,
        "n_mamba_heads": 8,
        "num_mem_blocks": 1,
    },
    "bamba": STATE_SPACE | {"attn_layer_indices": [1]},
    "jamba": MOE | {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 4},
    "qwen3_5_moe_text": MOE | LINEAR,
    "qwen4_exp_text": MOE | LINEAR,
    "bailing_hybrid": EXPERTS | {"layer_group_size": 2},
    "youtu": EXPERTS | {"head_dim": 4},
    "axk1": EXPERTS | {"head_dim": 4},
    "zaya": MOE | {"num_experts_per_tok": 1},
    "lfm2_moe": MOE | {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
}


def save_small(folder: Path, kind: str) -> Any:
    """Save a small random model with a tokenizer; None if no small config builds one."""
    for sizes in SIZES:
        values = sizes | PARTICULAR.get(kind, {})
        try:
            config = AutoConfig.for_model(
                kind, **{k: v for k, v in values.items() if v is not None}
            )
            with torch.device("meta"):
                size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
            if size > LARGEST:
                continue
            with torch.random.fork_rng(), torch.no_grad():
                torch.manual_seed(7)
                model = AutoModelForCausalLM.from_config(config).eval()
                model(input_ids=torch.arange(3, 9)[None], use_cache=False)
        except Exception:  # each config has checks and errors of its own
            continue
        model.save_pretrained(folder)
        save_tokenizer(folder)
        return model
    return None


def way(kind: str, folder: Path) -> str:
    """How a small random model of this type trains, in words of docs/models.md.

    Raises what a client raises if it refuses a model that the operator accepts.
    """
    if kind in ILL_SIZED or save_small(folder, kind) is None:
        return NOT_BUILT
    run, named = SETTINGS, ""
    try:
        card = model_card(folder, run.lora, "m", None)
    except InvalidSettings as refusal:
        advice = re.search(r"Set lora.target_modules = (\[.*\])", refusal.detail)
        if advice is None:
            return "refused: " + re.sub(
                r"^A [\w-]+ model |\. Use.*|^.*, whose ", "", refusal.detail
            )
        values = run.model_dump() | {"lora": run.lora.model_dump()}
        values["lora"]["target_modules"] = json.loads(advice[1])
        run, named = RunSettings.model_validate(values), ", named layers"
        card = model_card(folder, run.lora, "m", None)
    loaded = load_model(folder, torch.float32)
    linear = {name for name, each in loaded.named_modules() if isinstance(each, nn.Linear)}
    assert not set(target_modules(card.layout)) - linear, "the client lacks these layers"
    policy = Policy.load(folder, card, run, device="cpu")
    verdict = check_packed_path(policy)
    assert sampling_error(policy) < 1e-3, "sampled log-probabilities are not the model's"
    return ("padded" if verdict.path == PADDED else "packed") + named


def sampling_error(policy: Policy) -> float:
    """The largest difference of sampled log-probabilities from the model's own, row by row."""
    prompts, worst = [[5, 6, 7, 8], [9, 10]], 0.0
    sampled = TransformersEngine(policy).generate(prompts, SamplingParameters(2, 6, 0.7, 1))
    for prompt, responses in zip(prompts, sampled, strict=True):
        for response in responses:
            tokens = torch.tensor(response.tokens, dtype=torch.int64)
            ids = torch.cat([torch.tensor(prompt), tokens])[None]
            with torch.no_grad():
                logits = policy.model(input_ids=ids, use_cache=False).logits[
                    0, len(prompt) - 1 : -1
                ]
            own = (logits / 0.7).log_softmax(-1).gather(1, tokens[:, None]).squeeze(1)
            worst = max(worst, float((own - torch.tensor(response.logprobs)).abs().max()))
    return worst


def model_types() -> list[str]:
    """transformers' causal models, and not those of more than text."""
    return sorted(json.loads(TABLE.read_text(encoding="utf-8"))["models"])

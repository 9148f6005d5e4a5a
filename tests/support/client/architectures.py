"""Random models of many architectures, a few thousand parameters each."""

from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from pubswap_client.policy.policy import Policy, _with_lora
from pubswap_protocol.model import ModelCard, adapter_layout
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import AdapterLayout

VOCABULARY = 48
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
MOE: dict[str, Any] = {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 4,
    "long_factor": [4.0] * 4,
    "original_max_position_embeddings": 64,
}


@dataclass(frozen=True)
class Case:
    """A config, and how it trains with all linear layers adapted.

    `named` is how a refused model trains with only the layers that the refusal names; None if it
    does not train then either.
    """

    kind: str
    config: dict[str, Any]
    way: Literal["packed", "padded", "refused"]
    named: Literal["packed", "padded"] | None = None


CASES: dict[str, Case] = {
    "Qwen3": Case("qwen3", {}, "packed"),
    "Qwen3, tied embeddings": Case("qwen3", {"tie_word_embeddings": True}, "packed"),
    "Qwen2": Case("qwen2", {}, "packed"),
    "Llama": Case("llama", {}, "packed"),
    "Llama 3.2": Case(
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": 32.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
        "packed",
    ),
    "Llama with biases": Case("llama", {"attention_bias": True, "mlp_bias": True}, "packed"),
    "Llama, dynamic RoPE": Case(
        "llama",
        {
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
            "max_position_embeddings": 64,
        },
        "packed",
    ),
    "Qwen3, YaRN": Case(
        "qwen3",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
        "packed",
    ),
    "Mistral": Case("mistral", {"sliding_window": 16}, "packed"),
    "Gemma": Case("gemma", {}, "packed"),
    "Gemma 2": Case(
        "gemma2",
        {
            "sliding_window": 16,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 5.0,
            "query_pre_attn_scalar": 8,
        },
        "padded",
    ),
    "Gemma 3": Case("gemma3_text", {"sliding_window": 16, "query_pre_attn_scalar": 8}, "packed"),
    "Phi": Case("phi", {}, "packed"),
    "Phi-3": Case("phi3", {}, "packed"),
    "Phi-3, longrope": Case(
        "phi3", {"rope_parameters": LONGROPE} | {"original_max_position_embeddings": 64}, "packed"
    ),
    "OLMo 2": Case("olmo2", {}, "packed"),
    "SmolLM3": Case("smollm3", {}, "packed"),
    "GPT-NeoX": Case("gpt_neox", {}, "packed"),
    "OPT": Case("opt", {"ffn_dim": 48, "word_embed_proj_dim": 32}, "packed"),
    "GLM-4": Case("glm4", {}, "packed"),
    "EXAONE 4": Case("exaone4", {"sliding_window": 16}, "packed"),
    "Cohere": Case("cohere", {"logit_scale": 0.25}, "packed"),
    "Cohere 2": Case("cohere2", {"sliding_window": 16, "logit_scale": 1.0}, "packed"),
    "Apertus": Case("apertus", {}, "packed"),
    "ERNIE 4.5": Case("ernie4_5", {}, "packed"),
    "Hunyuan": Case("hunyuan_v1_dense", {}, "packed"),
    "Granite": Case(
        "granite",
        {
            "logits_scaling": 8.0,
            "residual_multiplier": 0.5,
            "embedding_multiplier": 2.0,
            "attention_multiplier": 0.2,
        },
        "packed",
    ),
    "BLOOM": Case("bloom", {"n_head": 4, "n_layer": 2}, "padded"),
    "StableLM": Case("stablelm", {}, "padded"),
    "Falcon": Case("falcon", {"alibi": True, "head_dim": None}, "padded"),
    "MPT": Case("mpt", {"d_model": 32, "n_heads": 4, "n_layers": 2}, "padded"),
    "StarCoder2": Case("starcoder2", {}, "packed"),
    "GPT-2": Case("gpt2", {"n_embd": 32, "n_head": 4, "n_layer": 2}, "refused"),
    "LFM2": Case("lfm2", {"layer_types": ["conv", "full_attention"], "block_ff_dim": 48}, "padded"),
    "Qwen3.5": Case(
        "qwen3_5_text",
        {
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_value_heads": 2,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
        },
        "padded",
    ),
    "Mamba": Case("mamba", {"state_size": 4}, "refused"),
    "Mamba 2": Case(
        "mamba2",
        {
            "state_size": 4,
            "num_heads": 8,
            "head_dim": 8,
            "n_groups": 1,
            "expand": 2,
            "chunk_size": 8,
        },
        "refused",
    ),
    "Falcon-H1": Case(
        "falcon_h1",
        {
            "mamba_d_ssm": 64,
            "mamba_n_heads": 8,
            "mamba_d_head": 8,
            "mamba_n_groups": 1,
            "mamba_d_state": 4,
            "mamba_chunk_size": 8,
        },
        "refused",
        "padded",
    ),
    "Qwen3-MoE": Case("qwen3_moe", MOE, "refused", "packed"),
    "Mixtral": Case("mixtral", MOE, "refused", "packed"),
    "Qwen3-Next": Case(
        "qwen3_next",
        MOE
        | {
            "shared_expert_intermediate_size": 16,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_value_heads": 2,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
        },
        "refused",
        "padded",
    ),
    "DeepSeek-V3": Case(
        "deepseek_v3",
        MOE
        | {
            "n_routed_experts": 4,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "q_lora_rank": 8,
            "kv_lora_rank": 8,
            "qk_rope_head_dim": 4,
            "head_dim": 4,
            "num_key_value_heads": 4,
            "qk_nope_head_dim": 4,
            "v_head_dim": 8,
        },
        "refused",
        "packed",
    ),
    "gpt-oss": Case("gpt_oss", MOE | {"sliding_window": 16}, "refused", "padded"),
    "Llama 4": Case(
        "llama4_text",
        MOE | {"attention_chunk_size": 16, "intermediate_size_mlp": 48},
        "refused",
        "padded",
    ),
    "RecurrentGemma": Case(
        "recurrent_gemma",
        {"lru_width": 32, "attention_window_size": 16, "num_hidden_layers": 3},
        "refused",
    ),
    "RWKV": Case("rwkv", {"attention_hidden_size": 32}, "refused"),
    "Granite 4 hybrid": Case(
        "granitemoehybrid",
        {
            "layer_types": ["mamba", "attention"],
            "num_local_experts": 0,
            "mamba_n_heads": 8,
            "mamba_d_head": 8,
            "mamba_n_groups": 1,
            "mamba_d_state": 4,
            "shared_intermediate_size": 48,
        },
        "padded",
    ),
    "OLMoE": Case("olmoe", MOE, "refused", "packed"),
    "Nemotron": Case("nemotron", {}, "padded"),
    "Persimmon": Case("persimmon", {}, "packed"),
    "GPT-J": Case("gptj", {"n_embd": 32, "n_head": 4, "n_layer": 2, "rotary_dim": 4}, "packed"),
    "GPTBigCode": Case("gpt_bigcode", {"n_embd": 32, "n_head": 4, "n_layer": 2}, "packed"),
}

SETTINGS = RunSettings.model_validate(
    {
        "lora": {"rank": 2, "alpha": 4},
        "grpo": {"max_prompt_tokens": 100, "max_response_tokens": 100},
    }
)


def random_model(name: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """A causal model of CASES, as transformers builds it from its config."""
    case = CASES[name]
    values = COMMON | case.config | changes
    config_values = {key: value for key, value in values.items() if value is not None}
    config = AutoConfig.for_model(case.kind, **config_values)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    if dtype == torch.float64:  # the reference; the fast product of experts has no float64 either
        model.set_attn_implementation("eager")
        model.config._experts_implementation = "eager"
    return model


def random_policy(
    name: str, dtype: torch.dtype = torch.float32, settings: RunSettings = SETTINGS, **changes: Any
) -> Policy:
    """A policy of a random model, with PEFT's initial adapter and no tokenizer."""
    model = random_model(name, dtype, **changes)
    shapes = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    return policy_of(model, adapter_layout(shapes, settings.lora), settings)


def policy_of(model: Any, layout: AdapterLayout, settings: RunSettings = SETTINGS) -> Policy:
    card = ModelCard(
        source="random",
        architecture=type(model).__name__,
        vocabulary=VOCABULARY,
        eos_token_ids=(1,),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        config_digest="sha256:" + "0" * 64,
        tokenizer_digest="sha256:" + "0" * 64,
        weights_digest="sha256:" + "0" * 64,
        layout=layout,
    )
    return Policy(_with_lora(model, card, settings.lora), cast(Any, None), card, settings)

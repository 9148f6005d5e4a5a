"""Random models of many architectures, a few thousand parameters each."""

from typing import Any, cast

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
PHI3_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 4,
    "long_factor": [4.0] * 4,
    "original_max_position_embeddings": 64,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3": ("qwen3", {}),
    "Qwen3 tied": ("qwen3", {"tie_word_embeddings": True}),
    "Qwen2": ("qwen2", {}),
    "Llama": ("llama", {}),
    "Llama 3.2": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 5e5,
                "factor": 32.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "Llama biased": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "Llama, dynamic RoPE": (
        "llama",
        {
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
            "max_position_embeddings": 64,
        },
    ),
    "yarn": (
        "qwen3",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "Mistral": ("mistral", {"sliding_window": 16}),
    "Gemma": ("gemma", {}),
    "Gemma2": (
        "gemma2",
        {
            "sliding_window": 16,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 5.0,
            "query_pre_attn_scalar": 8,
        },
    ),
    "Gemma3": ("gemma3_text", {"sliding_window": 16, "query_pre_attn_scalar": 8}),
    "Phi": ("phi", {}),
    "Phi3": ("phi3", {}),
    "Phi-3, longrope": (
        "phi3",
        {"rope_parameters": PHI3_ROPE, "original_max_position_embeddings": 64},
    ),
    "OLMo2": ("olmo2", {}),
    "SmolLM3": ("smollm3", {}),
    "GPT-NeoX": ("gpt_neox", {}),
    "OPT": ("opt", {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "GLM4": ("glm4", {}),
    "EXAONE4": ("exaone4", {"sliding_window": 16}),
    "Cohere": ("cohere", {"logit_scale": 0.25}),
    "Cohere2": ("cohere2", {"sliding_window": 16, "logit_scale": 1.0}),
    "Apertus": ("apertus", {}),
    "Ernie4.5": ("ernie4_5", {}),
    "Hunyuan": ("hunyuan_v1_dense", {}),
    "Granite": (
        "granite",
        {
            "logits_scaling": 8.0,
            "residual_multiplier": 0.5,
            "embedding_multiplier": 2.0,
            "attention_multiplier": 0.2,
        },
    ),
    "Bloom": ("bloom", {"n_head": 4, "n_layer": 2}),
    "StableLM": ("stablelm", {}),
    "Falcon": ("falcon", {"alibi": True, "head_dim": None}),
    "MPT": ("mpt", {"d_model": 32, "n_heads": 4, "n_layers": 2}),
    "Starcoder2": ("starcoder2", {}),
    "GPT-2": ("gpt2", {"n_embd": 32, "n_head": 4, "n_layer": 2}),
    "LFM2": ("lfm2", {"layer_types": ["conv", "full_attention"], "block_ff_dim": 48}),
    "Qwen3.5": (
        "qwen3_5_text",
        {
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_value_heads": 2,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
        },
    ),
    "Mamba": ("mamba", {"state_size": 4}),
    "Mamba2": (
        "mamba2",
        {
            "state_size": 4,
            "num_heads": 8,
            "head_dim": 8,
            "n_groups": 1,
            "expand": 2,
            "chunk_size": 8,
        },
    ),
    "Falcon-H1": (
        "falcon_h1",
        {
            "mamba_d_ssm": 64,
            "mamba_n_heads": 8,
            "mamba_d_head": 8,
            "mamba_n_groups": 1,
            "mamba_d_state": 4,
            "mamba_chunk_size": 8,
        },
    ),
    "Qwen3-MoE": ("qwen3_moe", MOE),
    "Mixtral": ("mixtral", MOE),
    "Qwen3-Next": (
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
    ),
    "DeepSeek-V3": (
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
            "qk_nope_head_dim": 4,
            "v_head_dim": 8,
        },
    ),
    "gpt-oss": ("gpt_oss", MOE | {"sliding_window": 16}),
    "Llama4": ("llama4_text", MOE | {"attention_chunk_size": 16, "intermediate_size_mlp": 48}),
    "RecurrentGemma": ("recurrent_gemma", {"lru_width": 32, "attention_window_size": 16}),
    "RWKV": ("rwkv", {"attention_hidden_size": 32}),
    "GraniteMoeHybrid": (
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
    ),
    "OLMoE": ("olmoe", MOE),
    "Nemotron": ("nemotron", {}),
    "Persimmon": ("persimmon", {}),
    "GPT-J": ("gptj", {"n_embd": 32, "n_head": 4, "n_layer": 2, "rotary_dim": 4}),
    "GPTBigCode": ("gpt_bigcode", {"n_embd": 32, "n_head": 4, "n_layer": 2}),
}
SETTINGS = RunSettings.model_validate(
    {
        "lora": {"rank": 2, "alpha": 4},
        "grpo": {"max_prompt_tokens": 100, "max_response_tokens": 100},
    }
)


def random_model(name: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """A causal model of CASES, as transformers makes it of its config."""
    kind, own = CASES[name]
    config = AutoConfig.for_model(kind, **(COMMON | own | changes))
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return AutoModelForCausalLM.from_config(config, dtype=dtype)


def random_policy(
    name: str, dtype: torch.dtype = torch.float32, settings: RunSettings = SETTINGS, **changes: Any
) -> Policy:
    """A policy of a random model, with the adapter that PEFT begins with, and no tokenizer."""
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
        config_digest="sha256:0",
        tokenizer_digest="sha256:0",
        weights_digest="sha256:0",
        layout=layout,
    )
    return Policy(_with_lora(model, card, settings.lora), cast(Any, None), card, settings)

"""Identify a base model from its files, without torch.

Two organisations have the same base model if the digests of config, tokenizer and weights agree.
The adapter's layout comes from the names and shapes in the safetensors headers.
"""

import datetime
import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from pubswap_protocol.base.files import Shapes, json_object, weight_files, weight_shapes
from pubswap_protocol.base.text_model import TextModel, text_model
from pubswap_protocol.bounds import Count, Label, Number, Positive, Strict
from pubswap_protocol.digests import sha256_of
from pubswap_protocol.errors import BaseModelMismatch, InvalidSettings
from pubswap_protocol.settings import LoraSettings
from pubswap_protocol.tensors.adapter import AdapterLayout, modules

ModelDigest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
SAMPLE_TOKENS = 10_000
_ADAPTER = "adapter_config.json"
_ATTENTION = ("attn_implementation", "_attn_implementation", "_attn_implementation_internal")
_NOT_LINEAR = ("embed", "lm_head", "wte", "wpe", "embedding")


class ModelDigests(Strict):
    """Digests of a base model's files."""

    config_digest: ModelDigest = Field(
        description="`sha256:` and the hexadecimal SHA-256 of config.json's bytes."
    )
    tokenizer_digest: ModelDigest = Field(description="The same for tokenizer.json.")
    weights_digest: ModelDigest = Field(
        description="The same for a text: the hexadecimal SHA-256 of each *.safetensors file that "
        "transformers loads, sorted by file name and joined by line feeds (none at the end)."
    )


class PromptSample(Strict):
    """What the operator's tokenizer and chat template make of a fixed text.

    The template is not part of the files that the digests cover, and transformers' versions differ.
    """

    date: datetime.date = Field(description="Today's date, for templates that write it.")
    token_ids: Annotated[tuple[Number, ...], Field(max_length=SAMPLE_TOKENS)]
    transformers: Label = Field(description="The operator's version of transformers.")


class ModelCard(ModelDigests):
    """A base model's identity, and the layout of its adapters."""

    source: Label = Field(description="A hub id, or the name of the operator's folder.")
    revision: Label | None = None
    architecture: Label
    text_model: Annotated[str, Field(max_length=200)] = Field(
        default="",
        description="The text model's module in the published model, such as "
        "`model.language_model`. Empty if the model is text only.",
    )
    vocabulary: Positive = Field(description="Number of token ids; each id is below it.")
    eos_token_ids: Annotated[tuple[Number, ...], Field(min_length=1, max_length=1000)]
    turn_token_ids: Annotated[tuple[Number, ...], Field(max_length=1000)] = Field(
        default=(),
        description="Tokens that the chat template writes between messages, and those of begin of "
        "text and padding. A response with one is not donated.",
    )
    prompt_sample: PromptSample | None = Field(
        default=None, description="Members' must be the same. Older runs have none."
    )
    parameters: Count
    layout: AdapterLayout

    @model_validator(mode="after")
    def _paired(self) -> Self:
        pairs = {name for pair in modules(self.layout) for name in pair}
        if not pairs or pairs != set(self.layout.tensors):
            raise ValueError("an adapter must have exactly one A and one B for each module")
        return self

    @property
    def prompt_date(self) -> datetime.date | None:
        """The date in the run's prompts, for templates that write it."""
        return self.prompt_sample.date if self.prompt_sample else None

    def check_same(self, other: ModelDigests) -> None:
        """Raises BaseModelMismatch, naming the files that differ, unless all digests agree."""
        fields = ModelDigests.model_fields
        differing = [f for f in fields if getattr(self, f) != getattr(other, f)]
        if differing:
            names = ", ".join(field.removesuffix("_digest") for field in differing)
            revision = f" at revision {self.revision}" if self.revision else ""
            raise BaseModelMismatch(
                f"The base model differs from the run's in: {names}. The run uses {self.source}"
                f"{revision}; point `model` at these files."
            )

    def check_declared(self, own: "ModelCard") -> None:
        """Raises BaseModelMismatch unless `own` is of the same files, and this says what they are.

        A coordinator declares more of a model than its digests.
        """
        self.check_same(own)
        if own.vocabulary != self.vocabulary:  # bounds peers' token ids
            raise BaseModelMismatch(
                f"The run declares a vocabulary of {self.vocabulary} for its base model, but the "
                f"same files have one of {own.vocabulary}. Ask the run's operator."
            )
        if own.text_model != self.text_model:  # the names of exported adapters
            raise BaseModelMismatch(
                f"The run declares the text model {self.text_model!r} in its base model, but in "
                f"the same files it is {own.text_model!r}. Ask the run's operator."
            )


def model_card(
    folder: Path, lora: LoraSettings, source: str, revision: str | None, stops: Sequence[int] = ()
) -> ModelCard:
    """The card of the model in a Hugging Face folder. The tokens `stops` also end a response.

    It has no `turn_token_ids`: the chat template is transformers' to read.

    Raises InvalidSettings, saying what is missing, if the folder holds no such model.
    """
    config_bytes, tokenizer_bytes = _bytes(folder, "config.json"), _bytes(folder, "tokenizer.json")
    config, model, shapes, layout = _read(folder, config_bytes, lora)
    vocabulary = _vocabulary(folder, model)
    if unknown := [token for token in stops if not 0 <= token < vocabulary]:
        raise InvalidSettings(
            f"model.stop_token_ids: {unknown[0]} is not in the vocabulary of {vocabulary}."
        )
    return ModelCard(
        source=source,
        revision=revision,
        architecture=(config.get("architectures") or [config.get("model_type", "unknown")])[0],
        text_model=model.place,
        vocabulary=vocabulary,
        eos_token_ids=tuple(dict.fromkeys([*_eos_token_ids(folder, model.config), *stops])),
        parameters=sum(math.prod(shape) for shape in shapes.values()),
        config_digest=fingerprint(config_bytes),
        tokenizer_digest=fingerprint(tokenizer_bytes),
        # Hash the files' digests and not their names, because copies may name files differently.
        weights_digest=fingerprint("\n".join(map(sha256_of, weight_files(folder))).encode()),
        layout=layout,
    )


def model_layout(folder: Path, lora: LoraSettings) -> AdapterLayout:
    """The adapter layout for the model in a folder, from its config and weight headers.

    Raises InvalidSettings if there is no config, if there are no weights, if `lora` chooses none of
    them, or if it chooses some that no client can adapt.
    """
    return _read(folder, _bytes(folder, "config.json"), lora)[-1]


def model_vocabulary(folder: Path) -> int:
    """The number of token ids of the model in a folder; raises InvalidSettings if it has none."""
    config = json_object(folder / "config.json", _bytes(folder, "config.json"))
    return _vocabulary(folder, text_model(config))


def _bytes(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        raise InvalidSettings(
            f"{folder} is not a Hugging Face model folder: {error.strerror}: {error.filename}"
        ) from None


def _read(
    folder: Path, config_bytes: bytes, lora: LoraSettings
) -> tuple[dict[str, Any], TextModel, Shapes, AdapterLayout]:
    """The config, the text model, its tensors' shapes, and the layout of adapters to it."""
    config = json_object(folder / "config.json", config_bytes)
    if (folder / _ADAPTER).exists():
        raise InvalidSettings(
            f"{folder} has an {_ADAPTER}, so transformers would load an adapter together with the "
            "base model. Move the adapter's files to a folder of their own."
        )
    model = text_model(config)
    for part in (config, model.config):
        if quantized := part.get("quantization_config"):
            method = quantized.get("quant_method") if isinstance(quantized, dict) else quantized
            raise InvalidSettings(
                f"{folder}/config.json has a quantization_config ({method}), and quantized base "
                "models cannot be trained yet; use the model's unquantized files."
            )
        for key in _ATTENTION:
            if "/" in str(part.get(key)):
                raise InvalidSettings(
                    f"{folder}/config.json has {key} = {part[key]!r}, which is code on a hub, and "
                    "code of a model is never run. Remove the key."
                )
        if part.get("return_dict") is False:
            raise InvalidSettings(
                f"{folder}/config.json has return_dict = false, so the model's outputs have no "
                "names. Remove the key."
            )
    files = weight_shapes(weight_files(folder))
    tensors = model.tensors(files)
    shapes = {ours: files[name] for name, ours in tensors.names.items()}
    layout = adapter_layout(shapes, lora)
    check_adaptable(layout, model, lora, tensors.converted)
    return config, model, shapes, layout


def _vocabulary(folder: Path, model: TextModel) -> int:
    vocabulary = model.config.get("vocab_size")
    if not isinstance(vocabulary, int):
        raise InvalidSettings(f"{folder}/config.json is not a model config: it has no vocab_size.")
    return vocabulary


def adapter_layout(shapes: Shapes, lora: LoraSettings) -> AdapterLayout:
    """PEFT's tensor names and shapes for A (rank, in) and B (out, rank) of each chosen layer.

    Raises InvalidSettings if `lora.target_modules` chooses no layer.
    """
    tensors: dict[str, tuple[int, int]] = {}
    for name, shape in sorted(shapes.items()):
        module = name.removesuffix(".weight")
        last = _last(module)
        if lora.target_modules == "all-linear":
            chosen = not any(part in last for part in _NOT_LINEAR)
        else:
            chosen = last in lora.target_modules
        if len(shape) != 2 or module == name or not chosen:
            continue
        outputs, inputs = shape
        tensors[f"base_model.model.{module}.lora_A.weight"] = (lora.rank, inputs)
        tensors[f"base_model.model.{module}.lora_B.weight"] = (outputs, lora.rank)
    if not tensors:
        raise InvalidSettings(f"lora.target_modules {lora.target_modules!r} matches no layer.")
    return AdapterLayout(tensors=tensors)


def check_adaptable(
    layout: AdapterLayout,
    model: TextModel,
    lora: LoraSettings,
    converted: Collection[str] = (),
) -> None:
    """Check that clients can adapt the chosen modules and sample from the model.

    transformers computes the `converted` tensors when it loads the model. Decides by names alone,
    because an operator's machine may have no torch. Raises InvalidSettings, naming the modules that
    can be adapted.
    """
    reason = _UNUSABLE.get(model.kind)
    if reason and not (reason == _LOOKS_AHEAD and model.config.get("is_decoder")):
        raise InvalidSettings(
            f"A {model.kind} model {reason}. Use a model listed in docs/models.md."
        )
    faults = {
        name: _fault(name, model, f"{name}.weight" in converted) for name in target_modules(layout)
    }
    wrong = {name: fault for name, fault in faults.items() if fault}
    if not wrong:
        return
    names = sorted({_last(name) for name in faults} - {_last(name) for name in wrong})
    first, fault = next(iter(wrong.items()))
    chosen = lora.target_modules if lora.target_modules == "all-linear" else [*lora.target_modules]
    advice = f"Set lora.target_modules = {json.dumps(names)}." if names else "Use another model."
    raise InvalidSettings(
        f"lora.target_modules = {json.dumps(chosen)} chooses modules such as {first}, {fault}. "
        f"{advice}"
    )


# Their state-space kernels read these projections' weights directly, bypassing any adapter.
_STATE_SPACE = {
    "falcon_h1": ("out_proj", "conv1d"),
    "nemotron_h": ("out_proj", "conv1d"),
    "jamba": ("dt_proj",),
}
_ENCODERS = (
    *("bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie"),
    *("megatron-bert", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer"),
    *("xlm-roberta", "xlm-roberta-xl", "xmod"),
)
_LOOKS_AHEAD = "attends to later tokens, unless its config sets is_decoder"
_UNUSABLE = {
    **dict.fromkeys(
        ("falcon_mamba", "mamba", "mamba2", "recurrent_gemma", "rwkv"),
        "has no key-value cache, which sampling needs",
    ),
    **dict.fromkeys(_ENCODERS, _LOOKS_AHEAD),
    **dict.fromkeys(
        (
            *("bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian", "mbart"),
            *("mvp", "pegasus", "plbart", "trocr"),
        ),
        "counts positions from the padding of a batch, so sampling would change with it",
    ),
    **dict.fromkeys(("minimax", "xlstm"), "has a cache that cannot be repeated for each response"),
    "xlm": "attends to later tokens",
    "whisper": "attends to speech, which a run does not have",
    "beam": "has layers that PEFT adapts only in part",
}
_TRANSPOSED = ("gpt2", "openai-gpt")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def _fault(module: str, model: TextModel, converted: bool) -> str | None:
    """Why a two-dimensional weight cannot be adapted as a linear layer, or None if it can."""
    kind, config, last = model.kind, model.config, _last(module)
    if ".experts." in module:
        return "which are parts of one tensor that holds all experts of a layer"
    if {"gate", "router"} & set(module.split(".")[-2:]) and any(
        config.get(name) for name in _EXPERTS
    ):
        return "which are expert routers and not linear layers"
    if ".indexer." in module:
        return "which only choose the tokens that attention sees, so they get no gradient"
    if last in _STATE_SPACE.get(kind, ()):
        return "which state-space layers read directly, bypassing any adapter"
    if converted:
        return "whose tensors transformers splits or joins when it loads them"
    if kind in _TRANSPOSED:
        return "whose weights GPT-2 stores transposed"
    return None


def _last(module: str) -> str:
    return module.rsplit(".", 1)[-1]


def check_positions(config: Mapping[str, Any], longest: int) -> None:
    """Raises InvalidSettings if a row's positions may depend on the other rows of its batch.

    Dynamic RoPE scaling depends on the longest row of the batch, once that row exceeds the
    original context.
    """
    config = config.get("text_config") or config
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    by_layer = [each for each in rope.values() if isinstance(each, dict)]
    for parameters in by_layer or [rope]:
        kind = parameters.get("rope_type", parameters.get("type"))
        name = "original_max_position_embeddings"
        limit = parameters.get(name) or config.get(name) or config.get("max_position_embeddings")
        if kind in ("dynamic", "longrope", "su") and limit and longest > limit:
            raise InvalidSettings(
                f"The model's RoPE scaling ({kind}) depends on the longest row of a batch beyond "
                f"{limit} tokens, so a response's probability would depend on its batch. Set "
                "grpo.max_prompt_tokens and grpo.max_response_tokens to at most "
                f"{limit} together, not {longest}."
            )


_TABLES = {
    **dict.fromkeys((*_ENCODERS, "biogpt", "gpt_neo", "opt"), "max_position_embeddings"),
    **dict.fromkeys(("codegen", "gpt_bigcode", "gptj"), "n_positions"),
    "mpt": "max_seq_len",
}
# Their first position is behind the one of the padding token.
_PADDED_TABLES = (
    *("camembert", "data2vec-text", "roberta", "roberta-prelayernorm"),
    *("xlm-roberta", "xlm-roberta-xl", "xmod"),
)


def check_table(config: Mapping[str, Any], longest: int) -> None:
    """Raises InvalidSettings if rows are longer than the model's table of positions, if any."""
    config = config.get("text_config") or config
    kind = str(config.get("model_type"))
    limit = config.get(_TABLES.get(kind, ""))
    if not isinstance(limit, int):
        return
    if kind in _PADDED_TABLES:
        padding = config.get("pad_token_id", 1)
        limit -= 1 + (padding if isinstance(padding, int) else 0)
    if longest > limit:
        raise InvalidSettings(
            f"The model has {limit} positions, and none for a row of {longest} tokens. Set "
            f"grpo.max_prompt_tokens and grpo.max_response_tokens to at most {limit} together."
        )


def target_modules(layout: AdapterLayout) -> list[str]:
    """The full names of the adapted modules, for PEFT's `target_modules`."""
    return sorted(module_of(a) for a, _ in modules(layout))


def module_of(name: str) -> str:
    """The full module name of an A tensor."""
    return name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")


def _eos_token_ids(folder: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    generation, ids = folder / "generation_config.json", None
    if generation.exists():
        ids = json_object(generation, generation.read_bytes()).get("eos_token_id")
    if ids is None:
        ids = config.get("eos_token_id")
    if isinstance(ids, int):
        return (ids,)
    if isinstance(ids, list) and ids:
        return tuple(ids)
    raise InvalidSettings(f"{folder} names no eos_token_id in its (generation) config.")


def fingerprint(data: bytes) -> str:
    """SHA-256 with its prefix, as model hubs use it; compared to tell base models apart."""
    return "sha256:" + hashlib.sha256(data).hexdigest()

"""The policy: a frozen base model with one LoRA adapter, on one device."""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from numpy.typing import NDArray
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer as CheckpointedLayer

from pubswap_client.policy.attention import attending_by, tree_attention
from pubswap_client.policy.attention_kernels import activated, packed_kernels
from pubswap_client.policy.liger import fuse_layers
from pubswap_client.policy.loading import load_model, refusing
from pubswap_client.policy.lora import fuse_products
from pubswap_client.policy.packing import Pack
from pubswap_client.policy.padded import PADDED, padded_hidden
from pubswap_client.policy.tokenizer import PromptTokenizer
from pubswap_protocol.errors import InvalidAdapter, InvalidProblems, InvalidSettings
from pubswap_protocol.model import ModelCard, check_table, target_modules
from pubswap_protocol.problems import PromptLimit
from pubswap_protocol.prompts import Prompt, text_of
from pubswap_protocol.settings import LoraSettings, RunSettings
from pubswap_protocol.tensors.adapter import (
    Adapter,
    AdapterLayout,
    AdapterSource,
    modules,
    sent_layout,
)
from pubswap_protocol.tensors.peft_folder import published_name
from pubswap_protocol.tensors.response_form import ResponseForm
from pubswap_protocol.tensors.responses import Response

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16"]
EMULATED = "this CPU has no instructions for bfloat16, and is faster in float32"


class Policy:
    """pi_theta: theta are the LoRA factors, held in float32 whatever the base model's dtype.

    The model stays in eval mode, even in training. pi_old comes from the first epoch's own forward
    pass, and dropout would make it differ from the policy that sampled.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: PromptTokenizer,
        card: ModelCard,
        settings: RunSettings,
        sharded: bool = False,
    ) -> None:
        """Wrap a PEFT model. Raises InvalidAdapter unless its factors match the run's layout."""
        self.model = model.eval()
        self.card = card
        self.settings = settings
        self.sharded = sharded
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self._causal_model = model.get_base_model()
        if getattr(model.config.get_text_config(), "attn_logit_softcapping", None):
            # SDPA, the default in transformers up to 5.20, silently ignores the cap.
            self._causal_model.set_attn_implementation("eager")
        # The update's compute path; the self-check chooses it by trial.
        self.path: str = packed_kernels(self.device, self.dtype)[0]
        self.linear_head = True
        self._tokenizer = tokenizer
        self._parameters = _factors(model, card.layout)
        sent = sent_layout(card.layout, settings.aggregation.rule).tensors
        for name, parameter in self._parameters.items():
            parameter.requires_grad_(name in sent)
        self._original: dict[str, Tensor] = {}  # base weights of modules where they were replaced

    @classmethod
    def load(
        cls,
        folder: Path,
        card: ModelCard,
        settings: RunSettings,
        device: Device | torch.device = "auto",
        dtype: Dtype = "auto",
        mesh: "DeviceMesh | None" = None,
    ) -> Self:
        """Load the base model from a folder, in `base_dtype`.

        Raises InvalidSettings if the model lacks weights or layers that the card's adapter needs,
        or rows are longer than its position table, or it is not part of transformers, because code
        in the folder is never run; BaseModelMismatch if prompts are not encoded as the run's. With
        a `mesh`, the base's layers are sharded over its processes (FSDP2), and each layer is
        gathered only while it computes.
        """
        device = find_device(device)
        with refusing(f"transformers does not load {folder}"):
            model = load_model(folder, base_dtype(dtype, cuda=device.type == "cuda"))
            check_table(model.config.to_dict(), settings.grpo.longest_row)
            if device.type == "cuda":
                fuse_layers(model)
                # cuDNN builds a plan for each new length, tens of milliseconds per decoded token.
                torch.backends.cuda.enable_cudnn_sdp(False)
                # No TF32, which NVIDIA's containers turn on, because some versions of transformers
                # compute RoPE's angles as a float32 product.
                torch.set_float32_matmul_precision("highest")
            tokenizer = PromptTokenizer(folder, card.prompt_date, card.vocabulary)
            tokenizer.check_prompts(card, settings)
            model = _with_lora(model if mesh else model.to(device), card, settings.lora)
            if mesh is not None:
                _shard(model, mesh)
            return cls(model.to(device), tokenizer, card, settings, sharded=mesh is not None)

    def factors(self) -> list[torch.nn.Parameter]:
        """The LoRA factors, in the order of their names."""
        return list(self._parameters.values())

    def trainable(self) -> list[torch.nn.Parameter]:
        """The factors that are trained, ordered by name. FFA-LoRA trains only the B."""
        return [parameter for parameter in self.factors() if parameter.requires_grad]

    def trained_names(self) -> list[str]:
        """The names of `trainable`, in the same order."""
        return [name for name, factor in self._parameters.items() if factor.requires_grad]

    @torch.no_grad()
    def rebase(self, adapters: Sequence[AdapterSource]) -> None:
        """Set W = W0 + (alpha / r) sum_k B_k A_k for the base weights of the adapted modules.

        W0 is kept on the same device, and the sum is computed again in float32 each time, in the
        order given. So W is rounded once, and has the same bits in whichever round a process began.
        """
        if not adapters and not self._original:
            return
        lora = self.settings.lora
        for a, b in modules(self.card.layout):
            weight = self._base_weight(a)
            original = self._original.setdefault(a, weight.data)
            total = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
            for adapter in adapters:
                factors = (torch.tensor(adapter.tensor(n), device=weight.device) for n in (b, a))
                total += torch.matmul(*factors)
            weight.data = (original.float() + lora.alpha / lora.rank * total).to(original.dtype)

    def load_adapter(self, adapter: Adapter) -> None:
        """Replace all factors in place; raises InvalidAdapter unless they fit the layout."""
        shapes = {name: array.shape for name, array in adapter.items()}
        _check_shapes(shapes, self.card.layout)
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(torch.tensor(adapter[name]))

    def adapter(self) -> Adapter:
        """A copy of the factors, under the layout's names."""
        return copy_to_host(self._parameters)

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Inside, the policy is the frozen base model, without what `rebase` added."""
        with self._instead(self._original.items()):
            yield

    @contextmanager
    def merged(self) -> Iterator[None]:
        """Inside, each adapted W is replaced by W + (alpha / r) B A, and the adapter is off.

        The sum is computed in float32 from W itself each time, and rounded once. It is a second
        copy of the adapted weights, and nothing may train meanwhile. The base's own tensors are
        restored afterwards.
        """
        scale = self.settings.lora.alpha / self.settings.lora.rank

        def sums() -> Iterator[tuple[str, Tensor]]:
            for a, b in modules(self.card.layout):
                weight = self._base_weight(a).data
                product = self._parameters[b].data @ self._parameters[a].data
                yield a, product.mul_(scale).add_(weight).to(weight.dtype)

        with self._instead(sums()):
            yield

    @contextmanager
    def _instead(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[None]:
        """Inside, these replace the base weights of adapted modules, and the adapter is off."""
        replaced: list[tuple[torch.nn.Parameter, Tensor]] = []
        trained = [factor.requires_grad for factor in self.factors()]
        try:
            with self.model.disable_adapter():
                for a, data in weights:
                    weight = self._base_weight(a)
                    replaced.append((weight, weight.data))
                    weight.data = data
                yield
        finally:
            for weight, data in replaced:
                weight.data = data
            # PEFT leaves every factor trainable, including frozen ones.
            for factor, flag in zip(self.factors(), trained, strict=True):
                factor.requires_grad_(flag)

    def _base_weight(self, a: str) -> torch.nn.Parameter:
        """The frozen weight of the module whose factor A has this name."""
        module = self.model.get_submodule(a.removesuffix(".lora_A.weight"))
        weight: torch.nn.Parameter = module.base_layer.weight
        return weight

    @contextmanager
    def packed(self, checkpointing: bool = False) -> Iterator[None]:
        """Inside, `hidden` may be called. `checkpointing` recomputes layers in backward passes."""
        decoder = self.decoder
        attention = nullcontext() if self.path == PADDED else attending_by(tree_attention, decoder)
        with attention, activated(self.path), _checkpointed(decoder, checkpointing):
            yield

    @property
    def decoder(self) -> Any:
        """The model without its output layer."""
        causal = self._causal_model
        decoder = causal.get_decoder()
        # Llama 4 returns itself, and ModernBERT its output layer.
        own = decoder is not causal and isinstance(decoder, PreTrainedModel)
        return decoder if own else causal.model

    def hidden(self, pack: Pack) -> Tensor:
        """The decoder's hidden states (n, H) that predict a pack's response tokens."""
        if self.path == PADDED:
            return padded_hidden(self.decoder, pack)
        output = self.decoder(
            input_ids=pack.input_ids,
            position_ids=pack.position_ids,
            use_cache=False,
            tree=pack.tree,
            kernel=self.path,
        )
        hidden: Tensor = output[0].squeeze(0)[pack.predictors]
        return hidden

    def own_logits(self, hidden: Tensor) -> Tensor:
        """The model's own logits (n, V) from its decoder's hidden states (n, H)."""
        decoder = self.decoder
        output = FixedOutput(hidden[None])
        decoder.forward = lambda *_, **__: output
        try:
            # The ids are ignored, because the decoder's output is given.
            ids = torch.zeros((1, len(hidden)), dtype=torch.int64, device=hidden.device)
            logits: Tensor = self._causal_model(input_ids=ids, use_cache=False).logits[0]
        finally:
            del decoder.forward
        return logits

    def head(self) -> tuple[Tensor, Tensor | None]:
        """The frozen output layer: its weight (V, H), and its bias (V,) or None."""
        layer = self._causal_model.get_output_embeddings()
        return layer.weight, getattr(layer, "bias", None)

    def encode(self, prompt: Prompt) -> list[int]:
        """A prompt's token ids, in the chat template if the run uses it and the model has one.

        Raises InvalidProblems if there are more than `max_prompt_tokens`.
        """
        limit = self.settings.grpo.max_prompt_tokens
        tokens = self._tokenizer.encode_for(self.settings, prompt)
        if len(tokens) > limit:
            raise InvalidProblems(
                f"The prompt {text_of(prompt)[:40]!r}... has {len(tokens)} tokens; this run takes "
                f"at most {limit} (grpo.max_prompt_tokens). Shorten or remove it."
            )
        return tokens

    @property
    def form(self) -> ResponseForm:
        """The form of the policy's responses."""
        return ResponseForm.of(self.card, self.settings)

    @property
    def prompt_limit(self) -> PromptLimit:
        return self._tokenizer.limit(self.settings)

    def decode(self, responses: Sequence[Response]) -> list[str]:
        """The responses' texts, exactly as the coordinator's verifier reads them."""
        form = self.form
        return [form.text(self._tokenizer.plain, each.tokens) for each in responses]


class FixedOutput:
    """A decoder's output that has only the hidden states (1, n, H)."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, index: Any) -> Any:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        return None


def recomputed_layers(decoder: Any) -> list[Any]:
    """The layers that checkpointing recomputes. Raises InvalidSettings if there are none."""
    layers = [layer for layer in decoder.modules() if isinstance(layer, CheckpointedLayer)]
    if not layers:
        raise InvalidSettings(
            f"gradient_checkpointing = true, but transformers cannot recompute the layers of a "
            f"{type(decoder).__name__}: remove gradient_checkpointing from client.toml."
        )
    return layers


@contextmanager
def _checkpointed(decoder: Any, enabled: bool) -> Iterator[None]:
    """Recompute each layer in the backward pass.

    transformers' own switch works only on layers in training mode, where many use their dropout.
    """
    layers = recomputed_layers(decoder) if enabled else []
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def copy_to_host(tensors: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    """Copy each tensor to host memory, unaffected by later changes to the tensor.

    From a GPU, all are copied at the same time, into pinned memory that torch caches for next time.
    """
    copies = {
        name: tensor.detach().to("cpu", copy=True, non_blocking=True)
        for name, tensor in tensors.items()
    }
    if any(tensor.device.type == "cuda" for tensor in tensors.values()):
        torch.cuda.synchronize()
    return {name: copied.numpy() for name, copied in copies.items()}


def positions(attention_mask: Tensor) -> Tensor:
    """Position ids (B, S) of left-padded rows: 0 at each row's first token."""
    return (attention_mask.cumsum(dim=1) - 1).clamp(min=0)


def find_device(device: Device | torch.device) -> torch.device:
    """The device of a setting. Raises InvalidSettings if it asks for a GPU and there is none."""
    if isinstance(device, torch.device):
        return device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    elif device == "cuda" and not torch.cuda.is_available():
        raise InvalidSettings("device = 'cuda', but torch finds no GPU; use 'cpu' or 'auto'.")
    return torch.device(device)


def base_dtype(dtype: Dtype, cuda: bool) -> torch.dtype:
    """The base model's dtype of a setting: by default bfloat16 on a GPU and float32 on a CPU."""
    if dtype == "auto":
        dtype = "bfloat16" if cuda else "float32"
    return torch.bfloat16 if dtype == "bfloat16" else torch.float32


def emulates_bfloat16(dtype: Dtype, cuda: bool) -> bool:
    """Whether the base would be bfloat16 on a CPU without instructions for it (x86's, ARM's)."""
    if cuda or base_dtype(dtype, cuda) != torch.bfloat16:
        return False
    ask = getattr(torch.cpu, "get_capabilities", None)  # older versions of torch cannot tell
    names = ("amx_bf16", "avx512_bf16", "bf16")
    return ask is not None and not any(map(ask().get, names))


def adapted_modules(model: Any, card: ModelCard, published: bool = False) -> list[str]:
    """The names of the modules that the run adapts, in the text model or the `published` one.

    Raises InvalidSettings unless each is a linear layer of this model, and none its output layer.
    """
    targets = target_modules(card.layout)
    if published:
        targets = [published_name(name, card) for name in targets]
    if any(name.rsplit(".", 1)[-1] == "lm_head" for name in targets):
        raise InvalidSettings("lora.target_modules must not name lm_head: it is kept frozen.")
    linear = {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    missing = [name for name in targets if name not in linear]
    if missing:
        raise InvalidSettings(
            f"The base model lacks {len(missing)} of the {len(targets)} linear layers that the run "
            f"adapts, first {missing[0]!r}; it is a {type(model).__name__}, the run's is a "
            f"{card.architecture}. Ask the operator for a run with other lora.target_modules."
        )
    return targets


def _with_lora(model: Any, card: ModelCard, lora: LoraSettings) -> Any:
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=0.0,
        target_modules=adapted_modules(model, card),
        bias="none",
        task_type="CAUSAL_LM",
    )
    with warnings.catch_warnings():
        # PEFT uses a transformers property by its old name, and a user cannot change that.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        try:
            # autocast_adapter_dtype keeps the factors in float32 over a bfloat16 base.
            adapted = get_peft_model(model, config, autocast_adapter_dtype=True)
        except (AttributeError, TypeError, ValueError) as error:
            raise InvalidSettings(
                f"PEFT cannot adapt this {type(model).__name__}: {error} Ask the operator for a "
                "run with other lora.target_modules."
            ) from None
    fuse_products(adapted)
    return adapted


def _shard(model: Any, mesh: "DeviceMesh") -> None:
    """Shard each layer's frozen weights. The factors are small, and stay whole on every process."""
    from torch.distributed.fsdp import fully_shard

    factors = {parameter for parameter in model.parameters() if parameter.requires_grad}
    for layer in model.get_base_model().get_decoder().layers:
        fully_shard(layer, mesh=mesh, ignored_params=factors)


def _factors(model: Any, layout: AdapterLayout) -> dict[str, torch.nn.Parameter]:
    """The trainable parameters under the layout's names, sorted by name."""
    factors = {
        name.replace(".default.weight", ".weight"): parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    _check_shapes({name: tuple(parameter.shape) for name, parameter in factors.items()}, layout)
    return dict(sorted(factors.items()))


def _check_shapes(shapes: dict[str, tuple[int, ...]], layout: AdapterLayout) -> None:
    for name in sorted(shapes.keys() | layout.tensors.keys()):
        if shapes.get(name) != layout.tensors.get(name):
            raise InvalidAdapter(
                f"Tensor {name!r} has the shape {shapes.get(name)}, but the run's layout says "
                f"{layout.tensors.get(name)}."
            )

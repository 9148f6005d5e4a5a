"""The floating-point operations that a GRPO step needs: counted from the model, not measured.

A multiply-add is two operations. Only matrix products count, and only for tokens that must be
computed: a prompt once for its K responses, no padding. What an implementation computes twice
(recomputed activations, a separate pass for pi_old) counts once, so that FLOPs / seconds compares
implementations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

GroupLengths = tuple[int, Sequence[int]]
"""A prompt's number of tokens, and that of each of its responses."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a Qwen or Llama decoder, and the rank of the LoRA on all its linear layers."""

    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    key_value_heads: int
    head_dim: int
    lora_rank: int

    @classmethod
    def from_config(cls, config: Mapping[str, Any], lora_rank: int) -> Self:
        """Read a model's config.json; raises KeyError if it lacks a size."""
        heads = config["num_attention_heads"]
        return cls(
            vocabulary=config["vocab_size"],
            hidden=config["hidden_size"],
            intermediate=config["intermediate_size"],
            layers=config["num_hidden_layers"],
            heads=heads,
            key_value_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            lora_rank=lora_rank,
        )

    @property
    def attention_width(self) -> int:
        """Half the FLOPs per pair of tokens and layer of the scores, or of the sum of values."""
        return self.heads * self.head_dim

    @property
    def linear(self) -> int:
        """Weights of all layers' linear modules, without the embeddings and the head."""
        return self.layers * sum(inputs * outputs for inputs, outputs in self._modules())

    @property
    def lora(self) -> int:
        """Weights of A (rank, in) and B (out, rank) on all linear modules."""
        return self.layers * sum(self.lora_rank * (i + o) for i, o in self._modules())

    @property
    def of_embeddings(self) -> int:
        """Weights, including A's, that read the embeddings, which need no gradient: layer 0's
        q, k, v."""
        return sum(inputs * (outputs + self.lora_rank) for inputs, outputs in self._modules()[:3])

    @property
    def head(self) -> int:
        """Weights of the projection to the vocabulary."""
        return self.hidden * self.vocabulary

    def _modules(self) -> list[tuple[int, int]]:
        """(in, out) of a layer's q, k, v, o, gate, up and down projections."""
        keys = self.key_value_heads * self.head_dim
        return [
            (self.hidden, self.attention_width),
            (self.hidden, keys),
            (self.hidden, keys),
            (self.attention_width, self.hidden),
            (self.hidden, self.intermediate),
            (self.hidden, self.intermediate),
            (self.intermediate, self.hidden),
        ]


def forward_flops(shape: ModelShape, groups: Sequence[GroupLengths], adapter: bool = True) -> int:
    """One forward pass: 2 per weight and token, 4 * heads * head_dim per attended pair and layer.

    The head is counted at response tokens only; `adapter` is False for the reference.
    """
    tokens, pairs, scored = _sizes(groups)
    weights = shape.linear + (shape.lora if adapter else 0)
    attention = 4 * shape.attention_width * shape.layers * pairs
    return 2 * weights * tokens + attention + 2 * shape.head * scored


def backward_flops(shape: ModelShape, groups: Sequence[GroupLengths]) -> int:
    """The gradients of one pass: of all inputs except the embeddings, and of LoRA's factors only.

    Attention's two products become four in the backward pass.
    """
    tokens, pairs, scored = _sizes(groups)
    attention = 8 * shape.attention_width * shape.layers * pairs
    weights = shape.linear + 2 * shape.lora - shape.of_embeddings
    return 2 * weights * tokens + attention + 2 * shape.head * scored


def update_flops(
    shape: ModelShape, groups: Sequence[GroupLengths], epochs: int, reference: bool
) -> int:
    """The update phase: the reference's pass if there is one, and both passes of each epoch.

    pi_old comes from the first epoch's forward pass.
    """
    once = forward_flops(shape, groups) + backward_flops(shape, groups)
    return epochs * once + (forward_flops(shape, groups, adapter=False) if reference else 0)


def step_flops(
    shape: ModelShape, groups: Sequence[GroupLengths], epochs: int, reference: bool
) -> int:
    """A whole step: sampling, counted as one forward pass over the same tokens, and the update."""
    return forward_flops(shape, groups) + update_flops(shape, groups, epochs, reference)


def _sizes(groups: Sequence[GroupLengths]) -> tuple[int, int, int]:
    """Distinct inputs, attended pairs (including each token with itself), and tokens scored.

    A response's last token is scored and never an input.
    """
    tokens = pairs = scored = 0
    for prompt, responses in groups:
        inputs = [length - 1 for length in responses]
        tokens += prompt + sum(inputs)
        pairs += prompt * (prompt + 1) // 2
        pairs += sum(length * prompt + length * (length + 1) // 2 for length in inputs)
        scored += sum(responses)
    return tokens, pairs, scored

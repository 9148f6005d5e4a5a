"""Gumbel-max sampling with noise that anyone with the seed can recompute.

    token = argmax_y (logit_y / temperature + g_y),   g_y = -log(-log(1 - u_y))
    u_y = (h_y + 1/2) / 2^32,   h_y = murmur3(seed, position, y)

is a draw from softmax(logits / temperature). The hash is 32-bit MurmurHash3 over the seed's low and
high halves, the position and the token id. vLLM 0.32 samples by the same hash on a GPU (its
v1/worker/gpu/sample/gumbel.py), so one check serves both engines. The position is the previous
token's, in prompt and response together. Integers are exact on every device; the logarithms are
float32.
"""

import torch
from torch import Tensor

LARGEST = 1 - 2.0**-24  # keeps u below 1, because float32 rounds the largest u to 1


def gumbel_sample(logits: Tensor, temperature: float, seeds: Tensor, positions: Tensor) -> Tensor:
    """Tokens (B,) from softmax(logits / temperature) (B, V), with noise of `seeds`, `positions`."""
    vocabulary = torch.arange(logits.shape[1], dtype=torch.int32, device=logits.device)
    noise = gumbel_noise(seeds[:, None], positions[:, None], vocabulary)
    return noise.add_(logits.float() / temperature).argmax(dim=1)


def gumbel_noise(seeds: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """Standard Gumbel noise in float32, for integers whose shapes broadcast.

    Seeds are int64 in 0..2^63-1; positions and token ids are in 0..2^31-1.
    """
    bits = murmur3(seeds, positions, tokens)
    high, low = _shifted(bits, 16).float(), (bits & 0xFFFF).float()
    uniform = high.mul_(2.0**-16).add_(low.add_(0.5), alpha=2.0**-32)
    # Large noise, the kind that wins, comes from u near 0, where float32 is most precise.
    return uniform.clamp_(max=LARGEST).neg_().log1p_().neg_().log_().neg_()


def murmur3(seeds: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """The hash of four 32-bit words, as int32 with the bits of a uint32; shapes broadcast."""
    mixed = torch.zeros((), dtype=torch.int32, device=seeds.device)
    for word in (_low(seeds), _low(seeds >> 32), _low(positions), _low(tokens)):
        mixed = mixed ^ _rotated(word * _signed(0xCC9E2D51), 15) * 0x1B873593
        mixed = _rotated(mixed, 13).mul_(5).add_(_signed(0xE6546B64))
    mixed ^= 16  # bytes
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        mixed ^= _shifted(mixed, shift)
        mixed *= _signed(factor)
    mixed ^= _shifted(mixed, 16)
    return mixed


def _low(values: Tensor) -> Tensor:
    """The low 32 bits of integers, as int32."""
    if values.dtype == torch.int32:
        return values
    low = values.long() & 0xFFFFFFFF
    return torch.where(low >= 1 << 31, low - (1 << 32), low).int()


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word


def _shifted(values: Tensor, bits: int) -> Tensor:
    """Logical right shift; int32's own shift is arithmetic."""
    return (values >> bits).bitwise_and_((1 << (32 - bits)) - 1)


def _rotated(values: Tensor, bits: int) -> Tensor:
    return (values << bits).bitwise_or_(_shifted(values, 32 - bits))

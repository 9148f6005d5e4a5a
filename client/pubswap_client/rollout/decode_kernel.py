"""Decode attention as a Triton kernel, which reads each row's own keys and nothing else.

torch's kernels take a mask, and read the padding and the whole window that the mask hides. Here a
row's keys are split among several programs if there are few rows, and their sums are joined by

    m = max_s m_s,   output = sum_s exp(m_s - m) o_s / sum_s exp(m_s - m) l_s

for a part's largest score m_s, sum of masses l_s and sum of weighted values o_s (FlashDecoding).
"""

# Triton compiles the kernels, and gives each argument its type when it is called.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 64  # keys at a time, or fewer of wide heads, which share a multiprocessor's memory
VALUES = 64 * 128
PROGRAMS = 1024  # that keep a large GPU's multiprocessors busy
MOST_PARTS = 16


def attend(
    query: Tensor, key: Tensor, value: Tensor, first: Tensor, last: Tensor, scale: float
) -> Tensor:
    """Attention of one query a row (B, H, 1, D) on keys and values (B, H_kv, S, D): (B, 1, H, D).

    Row b sees the keys first_b .. last of `first` (B,) and `last` (1,), both int64. Keys and values
    have the same strides.
    """
    rows, heads, _, width = query.shape
    key_heads = key.shape[1]
    group = heads // key_heads
    if key.stride() != value.stride() or key.stride(3) != 1:
        raise NotImplementedError("its keys and values lie differently in memory")
    query = query.contiguous()
    parts = max(1, min(MOST_PARTS, PROGRAMS // (rows * key_heads)))
    sums = query.new_empty((rows, heads, parts, width), dtype=torch.float32)
    largest, totals = (sums.new_empty((rows, heads, parts)) for _ in range(2))
    output = query.new_empty((rows, 1, heads, width))
    padded = triton.next_power_of_2(width)
    _attend[(rows * key_heads, parts)](
        query,
        key,
        value,
        first,
        last,
        sums,
        largest,
        totals,
        scale,
        key_heads,
        group,
        width,
        parts,
        *key.stride()[:3],
        GROUP=max(16, triton.next_power_of_2(group)),
        WIDTH=padded,
        BLOCK=min(BLOCK, VALUES // padded),
    )
    size = triton.next_power_of_2(parts)
    _join[(rows * heads,)](sums, largest, totals, output, width, parts, PARTS=size, WIDTH=padded)
    return output


@triton.jit
def _attend(
    query,
    key,
    value,
    first,
    last,
    sums,
    largest,
    totals,
    scale,
    key_heads,
    group,
    width,
    parts,
    row_stride,
    head_stride,
    token_stride,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One part of the keys of one row and key head, for the `group` queries that share them."""
    program, part = tl.program_id(0), tl.program_id(1)
    row, head = program // key_heads, program % key_heads
    members, columns = tl.arange(0, GROUP), tl.arange(0, WIDTH)
    inside = (columns < width)[None, :]
    real = members < group
    queries = tl.load(
        query + (program * group + members)[:, None] * width + columns[None, :],
        mask=real[:, None] & inside,
        other=0.0,
    )
    start, end = tl.load(first + row), tl.load(last) + 1
    share = tl.cdiv(tl.cdiv(end - start, parts), BLOCK) * BLOCK
    start += part * share
    end = tl.minimum(start + share, end)
    base = row.to(tl.int64) * row_stride + head * head_stride
    top = tl.full([GROUP], float("-inf"), tl.float32)
    total = tl.zeros([GROUP], tl.float32)
    weighted = tl.zeros([GROUP, WIDTH], tl.float32)
    for position in range(start, end, BLOCK):
        tokens = position + tl.arange(0, BLOCK)
        seen = tokens < end
        where = base + tokens[:, None] * token_stride + columns[None, :]
        keys = tl.load(key + where, mask=seen[:, None] & inside, other=0.0)
        values = tl.load(value + where, mask=seen[:, None] & inside, other=0.0)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        scores = tl.where(seen[None, :], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        masses = tl.exp(scores - new_top[:, None])
        decay = tl.exp(top - new_top)
        total = total * decay + tl.sum(masses, 1)
        mean = tl.dot(masses.to(values.dtype), values, input_precision="ieee")
        weighted = weighted * decay[:, None] + mean
        top = new_top
    place = (program * group + members) * parts + part
    tl.store(largest + place, top, mask=real)
    tl.store(totals + place, total, mask=real)
    tl.store(
        sums + place[:, None] * width + columns[None, :], weighted, mask=real[:, None] & inside
    )


@triton.jit
def _join(sums, largest, totals, output, width, parts, PARTS: tl.constexpr, WIDTH: tl.constexpr):
    """Join the parts of one row and head."""
    program = tl.program_id(0)
    members, columns = tl.arange(0, PARTS), tl.arange(0, WIDTH)
    real, inside = members < parts, columns < width
    place = program * parts + members
    top = tl.load(largest + place, mask=real, other=float("-inf"))
    weights = tl.exp(top - tl.max(top, 0))
    total = tl.sum(weights * tl.load(totals + place, mask=real, other=0.0), 0)
    weighted = tl.load(
        sums + place[:, None] * width + columns[None, :],
        mask=real[:, None] & inside[None, :],
        other=0.0,
    )
    joined = tl.sum(weights[:, None] * weighted, 0) / total
    tl.store(output + program * width + columns, joined.to(output.dtype.element_ty), mask=inside)

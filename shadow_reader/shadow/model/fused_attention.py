"""Triton kernels of a full-attention mixer over pages.

``_turn`` norms and rotates queries and keys and writes the new rows. ``_attend`` has a program for
each 128 queries of a head and each share of the keys they see; the keys go in blocks of 64 by
absolute position, the shares follow from position and count alone, and ``_join`` adds them up in
their order. Pages are found by numbers on the device (``fused_numbers``), so one launch is good
wherever they lie and however many there are.

Twins: ``Rotary`` in ``layers.py``, ``attention`` in ``attention.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from shadow_reader.shadow.model.fused_numbers import COUNT, PAGE_ROWS, PAGES, POSITION, ROWS

KEYS = 64
"""Keys a block; pages hold a multiple of it."""
QUERIES = 128
"""Queries a program; a call's padded length is a multiple of it."""
_PROGRAMS = 128
_TOKENS = 16
"""About as many programs as one wave of the device takes."""


@triton.jit
def _turn(
    mixed, stride, q_norm, k_norm, cos, sin, q_out, rows, numbers, layer, eps, N,
    HEADS: tl.constexpr, KV: tl.constexpr, D: tl.constexpr, ROTARY: tl.constexpr,
    BT: tl.constexpr, COUNT: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    time = tl.program_id(0) * BT + tl.arange(0, BT)
    slot = tl.program_id(1)
    at = tl.arange(0, D)
    dtype = q_out.dtype.element_ty
    is_query = slot < HEADS
    own = slot - HEADS
    first = tl.where(is_query, slot * 2 * D, HEADS * 2 * D + own * D)
    source = mixed + time[:, None] * stride + first
    value = tl.load(source + at[None, :]).to(tl.float32)
    if slot < HEADS + KV:
        half: tl.constexpr = ROTARY // 2
        other = tl.where(at < half, at + half, tl.where(at < ROTARY, at - half, at))
        partner = tl.load(source + other[None, :]).to(tl.float32)
        scale = tl.rsqrt(tl.sum(value * value, axis=1) / D + eps)[:, None]
        norm = q_norm
        if slot >= HEADS:
            norm = k_norm
        value = value * scale * tl.load(norm + at)[None, :]
        partner = partner * scale * tl.load(norm + other)[None, :]
        turns = (at < ROTARY)[None, :]
        angle = time[:, None] * ROTARY + at[None, :]
        c = tl.load(cos + angle, mask=turns, other=1.0)
        s = tl.load(sin + angle, mask=turns, other=0.0)
        value = value * c + partner * s
    place = time[:, None] * D + at[None, :]
    if is_query:
        tl.store(q_out + slot * N * D + place, value.to(dtype))
    else:
        n = tl.load(numbers + COUNT).to(tl.int32)
        to = rows + tl.multiple_of(tl.load(numbers + ROWS), 16) + (2 * layer * KV + own) * n * D
        tl.store(to + place, value.to(dtype), mask=(time < n)[:, None])


@triton.jit
def _seen(scores, values, acc, top, total):
    """One block more: running maximum, sum and weighted values, in powers of two."""
    above = tl.maximum(top, tl.max(scores, axis=1))
    base = tl.where(above == float("-inf"), 0.0, above)
    share = tl.exp2(scores - base[:, None])
    fade = tl.exp2(top - base)
    total = total * fade + tl.sum(share, axis=1)
    acc = tl.dot(share.to(values.dtype), values, acc * fade[:, None])
    return acc, above, total


@triton.jit
def _attend(
    q, rows, numbers, layer, parts, tops, sums, scale, N, SHARES,
    GROUP: tl.constexpr, KV: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    POSITION: tl.constexpr, COUNT: tl.constexpr, PAGE_ROWS: tl.constexpr, ROWS: tl.constexpr,
    PAGES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    share = tl.program_id(1)
    head = tile // (N // BM)
    block = tile % (N // BM)
    place = 2 * layer * KV + head // GROUP
    position = tl.load(numbers + POSITION).to(tl.int32)
    n = tl.load(numbers + COUNT).to(tl.int32)
    page_rows = tl.load(numbers + PAGE_ROWS).to(tl.int32)
    time = block * BM + tl.arange(0, BM)
    at = tl.arange(0, D)
    key = tl.arange(0, BN)
    inner = key[:, None] * D + at[None, :]
    query = tl.load(q + (head * N + time)[:, None] * D + at[None, :])
    acc = tl.zeros([BM, D], tl.float32)
    top = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)

    past = tl.cdiv(position, BN)
    count = past + (block + 1) * BM // BN
    low = count * share // SHARES
    high = count * (share + 1) // SHARES
    whole = position // BN
    for index in tl.range(low, tl.minimum(high, whole), num_stages=STAGES):
        page = index * BN // page_rows
        first = tl.multiple_of(tl.load(numbers + PAGES + page), 16)
        keys = rows + first + (place * page_rows + (index * BN - page * page_rows)) * D
        k = tl.load(keys + inner)
        v = tl.load(keys + KV * page_rows * D + inner)
        scores = tl.dot(query, tl.trans(k)) * scale
        acc, top, total = _seen(scores, v, acc, top, total)
    if (whole < past) & (low <= whole) & (whole < high):
        page = whole * BN // page_rows
        first = tl.multiple_of(tl.load(numbers + PAGES + page), 16)
        keys = rows + first + (place * page_rows + (whole * BN - page * page_rows)) * D
        there = whole * BN + key < position
        k = tl.load(keys + inner, mask=there[:, None], other=0.0)
        v = tl.load(keys + KV * page_rows * D + inner, mask=there[:, None], other=0.0)
        scores = tl.dot(query, tl.trans(k)) * scale
        scores = tl.where(there[None, :], scores, float("-inf"))
        acc, top, total = _seen(scores, v, acc, top, total)
    own = rows + tl.multiple_of(tl.load(numbers + ROWS), 16) + place * n * D
    for index in tl.range(tl.maximum(low, past), high, num_stages=STAGES):
        new = (index - past) * BN
        there = (new + key < n)[:, None]
        k = tl.load(own + new * D + inner, mask=there, other=0.0)
        v = tl.load(own + KV * n * D + new * D + inner, mask=there, other=0.0)
        scores = tl.dot(query, tl.trans(k)) * scale
        scores = tl.where(time[:, None] >= (new + key)[None, :], scores, float("-inf"))
        acc, top, total = _seen(scores, v, acc, top, total)

    row = (share * GROUP * KV + head) * N + time
    tl.store(parts + row[:, None] * D + at[None, :], acc.to(parts.dtype.element_ty))
    tl.store(tops + row, top)
    tl.store(sums + row, total)


@triton.jit
def _join(
    parts, tops, sums, mixed, stride, out, N, SHARES,
    HEADS: tl.constexpr, D: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    time = tl.program_id(0) * BT + tl.arange(0, BT)
    head = tl.program_id(1)
    at = tl.arange(0, D)
    top = tl.full([BT], float("-inf"), tl.float32)
    for share in tl.range(0, SHARES):
        top = tl.maximum(top, tl.load(tops + (share * HEADS + head) * N + time))
    acc = tl.zeros([BT, D], tl.float32)
    total = tl.zeros([BT], tl.float32)
    for share in tl.range(0, SHARES):
        row = (share * HEADS + head) * N + time
        weight = tl.exp2(tl.load(tops + row) - top)
        total += weight * tl.load(sums + row)
        part = tl.load(parts + row[:, None] * D + at[None, :])
        acc += weight[:, None] * part.to(tl.float32)
    gate = tl.load(mixed + time[:, None] * stride + head * 2 * D + D + at[None, :]).to(tl.float32)
    value = acc / total[:, None] * tl.sigmoid(gate)
    place = time[:, None] * (HEADS * D) + head * D + at[None, :]
    tl.store(out + place, value.to(out.dtype.element_ty))


@dataclass(frozen=True, slots=True)
class AttentionScratch:
    """What the kernels of one layer hand on, for n queries."""

    q: torch.Tensor  # [heads, n, head_dim]
    parts: torch.Tensor  # [shares, heads, n, head_dim], model dtype
    tops: torch.Tensor  # [shares, heads, n] float32
    sums: torch.Tensor  # [shares, heads, n] float32


def key_shares(heads: int, n: int) -> int:
    """Into how many shares the keys of ``n`` queries of ``heads`` heads are cut."""
    return max(1, _PROGRAMS // (heads * (n // QUERIES)))


def fused_attention(
    *,
    mixed: torch.Tensor,
    numbers: torch.Tensor,
    rows: torch.Tensor,
    layer: int,
    q_norm: torch.Tensor,
    k_norm: torch.Tensor,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
    scratch: AttentionScratch,
    kv_heads: int,
    out: torch.Tensor,
) -> None:
    """Norms, rotary embedding, new rows, attention and output gate of one layer.

    Args:
        mixed: [n, heads * 2 * head_dim + 2 * kv_heads * head_dim], the input projection's rows.
        numbers: see ``fused_numbers``: position, count, where pages and new rows lie.
        rows: anchor of pages and new rows. layer: its number among those of its kind.
        cos, sin: [n, rotary_dim] float32, the sine's first half negated.
        out: [n, heads * head_dim], written; what lies past the count is anything.
    """
    heads, n, dim = scratch.q.shape
    shares = scratch.tops.shape[0]
    _turn[(n // _TOKENS, heads + 2 * kv_heads)](
        mixed, mixed.stride(0), q_norm, k_norm, cos, sin, scratch.q, rows, numbers, layer, eps, n,
        HEADS=heads, KV=kv_heads, D=dim, ROTARY=cos.shape[1], BT=_TOKENS, COUNT=COUNT, ROWS=ROWS,
        num_warps=4,
    )  # fmt: skip
    _attend[(heads * (n // QUERIES), shares)](
        scratch.q, rows, numbers, layer, scratch.parts, scratch.tops, scratch.sums,
        math.log2(math.e) / math.sqrt(dim), n, shares,
        GROUP=heads // kv_heads, KV=kv_heads, D=dim, BM=QUERIES, BN=KEYS, POSITION=POSITION,
        COUNT=COUNT, PAGE_ROWS=PAGE_ROWS, ROWS=ROWS, PAGES=PAGES, STAGES=2, num_warps=8,
    )  # fmt: skip
    _join[(n // _TOKENS, heads)](
        scratch.parts, scratch.tops, scratch.sums, mixed, mixed.stride(0), out, n, shares,
        HEADS=heads, D=dim, BT=_TOKENS, num_warps=4,
    )  # fmt: skip

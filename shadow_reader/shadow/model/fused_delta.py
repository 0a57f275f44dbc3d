"""Triton kernels of a Gated-DeltaNet mixer: convolution, gates, and the chunked delta rule.

Three kernels a layer. ``_convolve`` makes queries, keys and values. ``_prepare`` has a program for
each 64 ids and value head: everything that can be said before the state is known. ``_scan``
carries the state, float32, through the chunks of one head; programs share a head by its value
columns, which do not meet. Products take operands of the model dtype and add up in float32; the
inverse of a chunk's system is made of products of tf32 operands, pairs first, so that no power
of it grows.

Twins: ``causal_conv`` in ``layers.py`` and ``gated_delta`` in ``delta.py``. Ids past the count
are zeros all along and change no bit of the state.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from shadow_reader.shadow.model.fused_numbers import (
    CONV,
    COUNT,
    NEW_CONV,
    NEW_RECURRENT,
    RECURRENT,
)

CHUNK = 64
_TOKENS = 4
_PROGRAMS = 132
"""Programs of the scan that run at once: a wider device only leaves some of it idle."""


@triton.jit
def _convolve(
    x, stride, taps, columns, numbers, layer, scale, out, N,
    KEYS: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, KERNEL: tl.constexpr,
    BT: tl.constexpr, COUNT: tl.constexpr, CONV: tl.constexpr, NEW_CONV: tl.constexpr,
):  # fmt: skip
    """One head of D channels over BT ids: convolution, SiLU, and length one for q and k."""
    slot = tl.program_id(0)
    block = tl.program_id(1)
    n = tl.load(numbers + COUNT).to(tl.int32)
    CHANNELS: tl.constexpr = (2 * KEYS + HEADS) * D
    BEFORE: tl.constexpr = KERNEL - 1
    own = slot * D + tl.arange(0, D)
    channel = own[None, :]
    time = (block * BT + tl.arange(0, BT))[:, None]
    kept = columns + tl.load(numbers + CONV) + layer * CHANNELS * BEFORE
    total = tl.zeros([BT, D], tl.float32)
    for tap in tl.static_range(KERNEL):
        source = time + (tap - BEFORE)
        new = tl.load(x + source * stride + channel, mask=(time < n) & (source >= 0), other=0.0)
        total += new.to(tl.float32) * tl.load(taps + tap * CHANNELS + channel)
    if block == 0:
        for tap in tl.static_range(BEFORE):
            early = time + (tap - BEFORE)
            place = kept + channel * BEFORE + (early + BEFORE)
            old = tl.load(place, mask=(time < n) & (early < 0), other=0.0)
            total += old.to(tl.float32) * tl.load(taps + tap * CHANNELS + channel)
        after = columns + tl.load(numbers + NEW_CONV) + layer * CHANNELS * BEFORE
        for column in tl.static_range(BEFORE):
            last = n - BEFORE + column
            from_x = tl.load(x + last * stride + own, mask=own * 0 + last >= 0, other=0.0)
            from_kept = kept + own * BEFORE + (last + BEFORE)
            from_kept = tl.load(from_kept, mask=own * 0 + last < 0, other=0.0)
            tl.store(after + own * BEFORE + column, tl.where(last >= 0, from_x, from_kept))
    total = total * tl.sigmoid(total)
    if slot < 2 * KEYS:
        length = tl.rsqrt(tl.sum(total * total, axis=1) + 1e-6)
        total = total * (length * tl.where(slot < KEYS, scale, 1.0))[:, None]
    to = out + (slot * N + time) * D + tl.arange(0, D)[None, :]
    tl.store(to, total.to(out.dtype.element_ty))


@triton.jit
def _inverse(system, C: tl.constexpr):
    """Inverse of I + ``system`` [C, C], strictly lower: pairs first, then joined two by two."""
    i = tl.arange(0, C)[:, None]
    j = tl.arange(0, C)[None, :]
    inverse = tl.where(i == j, 1.0, 0.0) - tl.where((i >> 1) == (j >> 1), system, 0.0)
    for size in tl.static_range(1, 10):
        if (1 << size) < C:
            joint = (i >> (size + 1)) == (j >> (size + 1))
            corner = tl.where(joint & ((i >> size) > (j >> size)), system, 0.0)
            first = tl.dot(inverse, corner, input_precision="tf32")
            inverse -= tl.dot(first, inverse, input_precision="tf32")
    return inverse


@triton.jit
def _prepare(
    qkv, gates, stride, rate, dt_bias, numbers, asks, meets, writes, enters, reads, kept, N,
    KEYS: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, C: tl.constexpr,
    COUNT: tl.constexpr,
):  # fmt: skip
    chunk = tl.program_id(0)
    head = tl.program_id(1)
    key_head = head // (HEADS // KEYS)
    n = tl.load(numbers + COUNT).to(tl.int32)
    time = chunk * C + tl.arange(0, C)
    dtype = asks.dtype.element_ty

    gate = gates + time * stride + head
    b = tl.load(gate, mask=time < n, other=0.0).to(tl.float32)
    a = tl.load(gate + HEADS, mask=time < n, other=0.0).to(tl.float32) + tl.load(dt_bias + head)
    beta = tl.where(time < n, tl.sigmoid(b), 0.0)
    soft = tl.where(a > 20.0, a, tl.log(1.0 + tl.exp(tl.minimum(a, 20.0))))
    g = tl.where(time < n, tl.maximum(soft * tl.load(rate + head), -200.0), 0.0)
    total = tl.cumsum(g.to(tl.float64), axis=0)
    whole = tl.sum(g.to(tl.float64), axis=0)
    between = tl.minimum(total[:, None] - total[None, :], 0.0).to(tl.float32)
    i = tl.arange(0, C)[:, None]
    j = tl.arange(0, C)[None, :]
    decay = tl.where(i >= j, tl.exp(between), 0.0)
    grown = tl.exp(total.to(tl.float32))
    leaving = tl.exp((whole - total).to(tl.float32))

    at = tl.arange(0, D)[None, :]
    deep = (head * N + time)[:, None] * D + at
    tl.store(kept + head * (N // C) + chunk, tl.exp(whole.to(tl.float32)))
    k = tl.load(qkv + ((KEYS + key_head) * N + time)[:, None] * D + at)
    tl.store(enters + deep, (k.to(tl.float32) * leaving[:, None]).to(dtype))
    # Both products with these keys come before the inverse: triton 3.6 otherwise reads past a tile.
    q = tl.load(qkv + (key_head * N + time)[:, None] * D + at)
    tl.store(asks + deep, (q.to(tl.float32) * grown[:, None]).to(dtype))
    read = tl.dot(q, tl.trans(k)) * decay
    tl.store(reads + (head * N + time)[:, None] * C + j, read.to(dtype))
    system = tl.dot(k, tl.trans(k)) * decay * beta[:, None]
    solved = _inverse(tl.where(i > j, system, 0.0), C).to(dtype)
    met = tl.dot(solved, (k.to(tl.float32) * (beta * grown)[:, None]).to(dtype))
    tl.store(meets + deep, met.to(dtype))

    v = tl.load(qkv + ((2 * KEYS + head) * N + time)[:, None] * D + at)
    written = tl.dot(solved, (v.to(tl.float32) * beta[:, None]).to(dtype))
    tl.store(writes + deep, written.to(dtype))


@triton.jit
def _scan(
    asks, meets, writes, enters, reads, kept, states, numbers, layer, out, N,
    HEADS: tl.constexpr, D: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    COUNT: tl.constexpr, RECURRENT: tl.constexpr, NEW_RECURRENT: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    column = tl.program_id(0) * BV + tl.arange(0, BV)
    key = tl.arange(0, D)
    inner = tl.arange(0, C)
    dtype = asks.dtype.element_ty
    n = tl.load(numbers + COUNT).to(tl.int32)
    place = (layer * HEADS + head) * D * D + key[:, None] * D + column[None, :]
    held = tl.load(states + tl.multiple_of(tl.load(numbers + RECURRENT), 16) + place)
    for chunk in tl.range(0, tl.cdiv(n, C), num_stages=STAGES):
        time = chunk * C + inner
        row = (head * N + time)[:, None]
        deep = row * D + key[None, :]
        now = held.to(dtype)
        meet = tl.load(meets + deep)
        ask = tl.load(asks + deep)
        write = tl.load(writes + row * D + column[None, :]).to(tl.float32)
        write = (write - tl.dot(meet, now)).to(dtype)
        read = tl.load(reads + row * C + inner[None, :])
        told = tl.dot(ask, now)
        told = tl.dot(read, write, told)
        enter = tl.load(enters + deep)
        held = held * tl.load(kept + head * (N // C) + chunk)
        held = tl.dot(tl.trans(enter), write, held)
        tl.store(out + time[:, None] * (HEADS * D) + head * D + column[None, :], told)
    tl.store(states + tl.multiple_of(tl.load(numbers + NEW_RECURRENT), 16) + place, held)


@dataclass(frozen=True, slots=True)
class DeltaScratch:
    """What one kernel leaves for the next, for n ids (a multiple of 64) of one layer."""

    qkv: torch.Tensor  # [2 * key_heads + value_heads, n, dim]
    asks: torch.Tensor  # [value_heads, n, dim]
    meets: torch.Tensor  # [value_heads, n, dim]
    writes: torch.Tensor  # [value_heads, n, dim]
    enters: torch.Tensor  # [value_heads, n, dim]
    reads: torch.Tensor  # [value_heads, n, 64]
    kept: torch.Tensor  # [value_heads, n / 64] float32


def fused_delta(
    *,
    inner: torch.Tensor,
    numbers: torch.Tensor,
    layer: int,
    taps: torch.Tensor,
    rate: torch.Tensor,
    dt_bias: torch.Tensor,
    columns: torch.Tensor,
    states: torch.Tensor,
    scratch: DeltaScratch,
    key_heads: int,
    out: torch.Tensor,
) -> None:
    """Convolution, gates and delta rule of one layer over n rows, of which the first few count.

    Args:
        inner: [n, conv_dim + value_width + 2 * value_heads], the input projection's rows; n is a
            multiple of 64.
        numbers: see ``fused_numbers``: the count, and where the states before and after lie.
        layer: number of the layer among those of its kind.
        taps: [kernel, conv_dim]. rate, dt_bias: [value_heads]; all float32.
        columns: anchor of the convolution states, [linear_layers, conv_dim, kernel - 1] each.
        states: anchor of the recurrent states, [linear_layers, value_heads, dim, dim] float32.
        out: [n, value_heads, dim] float32, written; what lies past the count is anything.
    """
    (n, heads, dim), s = out.shape, scratch
    slots = 2 * key_heads + heads
    _convolve[(slots, n // _TOKENS)](
        inner, inner.stride(0), taps, columns, numbers, layer, dim**-0.5, s.qkv, n,
        KEYS=key_heads, HEADS=heads, D=dim, KERNEL=taps.shape[0], BT=_TOKENS, COUNT=COUNT,
        CONV=CONV, NEW_CONV=NEW_CONV, num_warps=1,
    )  # fmt: skip
    gates = inner[:, slots * dim + heads * dim :]
    _prepare[(n // CHUNK, heads)](
        s.qkv, gates, inner.stride(0), rate, dt_bias, numbers,
        s.asks, s.meets, s.writes, s.enters, s.reads, s.kept, n,
        KEYS=key_heads, HEADS=heads, D=dim, C=CHUNK, COUNT=COUNT, num_warps=4,
    )  # fmt: skip
    wide = min(32, dim)
    width = wide if heads * dim // 16 > _PROGRAMS else 16
    _scan[(dim // width, heads)](
        s.asks, s.meets, s.writes, s.enters, s.reads, s.kept, states, numbers, layer, out, n,
        HEADS=heads, D=dim, BV=width, C=CHUNK, COUNT=COUNT, RECURRENT=RECURRENT,
        NEW_RECURRENT=NEW_RECURRENT, STAGES=3, num_warps=4,
    )  # fmt: skip

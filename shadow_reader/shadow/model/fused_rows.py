"""Triton kernels over the rows of one chunk: norms and the gate of the MLP.

Twins: ``rms_norm`` in ``layers.py``; for the others the plain lines in ``qwen35.py``. Sums and
scales are float32; each row is one program's work, so its bits do not depend on its neighbours.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_NORM_ROWS = 1
_GATED_ROWS = 16
_BLOCK = 1024


@triton.jit
def _norm(x, weight, out, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, BLOCK)
    place = row[:, None] * WIDTH + at[None, :]
    inside = (at < WIDTH)[None, :] & (row >= 0)[:, None]
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, axis=1) / WIDTH + eps)
    scaled = value * scale[:, None] * tl.load(weight + at, mask=at < WIDTH, other=0.0)[None, :]
    tl.store(out + place, scaled.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _gated_norm(
    x, z, weight, out, eps, z_stride,
    HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, BLOCK)
    inside = (at < DIM)[None, :] & (row >= 0)[:, None]
    flat = row[:, None] * DIM + at[None, :]
    value = tl.load(x + flat, mask=inside, other=0.0)
    scale = tl.rsqrt(tl.sum(value * value, axis=1) / DIM + eps)
    factor = tl.load(weight + at, mask=at < DIM, other=0.0)
    place = (row // HEADS)[:, None] * z_stride + (row % HEADS)[:, None] * DIM + at[None, :]
    gate = tl.load(z + place, mask=inside, other=0.0).to(tl.float32)
    gated = value * scale[:, None] * factor[None, :] * (gate * tl.sigmoid(gate))
    tl.store(out + flat, gated.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _silu_mul(wide, out, SIZE, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < SIZE
    left = (at // WIDTH) * (2 * WIDTH) + at % WIDTH
    gate = tl.load(wide + left, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(wide + left + WIDTH, mask=inside, other=0.0).to(tl.float32)
    product = gate * tl.sigmoid(gate) * up
    tl.store(out + at, product.to(out.dtype.element_ty), mask=inside)


def norm_rows(*, x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor) -> None:
    """``out`` = ``rms_norm(x, weight, eps)``; both [n, width] contiguous, ``weight`` [width]."""
    rows, width = x.shape
    block = triton.next_power_of_2(width)
    _norm[(rows // _NORM_ROWS,)](
        x, weight, out, eps, WIDTH=width, BLOCK=block, ROWS=_NORM_ROWS, num_warps=4
    )


def gated_norm(
    *, x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor
) -> None:
    """``out`` = ``rms_norm(x) * silu(z)``, head by head.

    Args:
        x: [n, heads, dim] float32, contiguous. weight: [dim] float32.
        z: [n, heads * dim], any row stride. out: [n, heads * dim] contiguous.
    """
    n, heads, dim = x.shape
    _gated_norm[(n * heads // _GATED_ROWS,)](
        x, z, weight, out, eps, z.stride(0),
        HEADS=heads, DIM=dim, BLOCK=triton.next_power_of_2(dim), ROWS=_GATED_ROWS, num_warps=4,
    )  # fmt: skip


def silu_mul(*, wide: torch.Tensor, out: torch.Tensor) -> None:
    """``out`` [n, width] = silu of the left half of ``wide`` [n, 2 * width], times the right."""
    size = out.numel()
    grid = (triton.cdiv(size, _BLOCK),)
    _silu_mul[grid](wide, out, size, WIDTH=out.shape[1], BLOCK=_BLOCK, num_warps=4)

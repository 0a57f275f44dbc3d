"""Attention of new ids over all rows before them and, causally, over themselves.

Two parts, each with the log of its softmax sum, joined in float32: the past needs no mask and
no repeated keys (a key head's queries are laid end to end); the new rows are a plain causal
square. ``naive_attention`` is the plain twin, and the way where the fast operator is not built
for the dtype or head size.
"""

from __future__ import annotations

import math

import torch

_CUDA_DTYPES = (torch.bfloat16, torch.float16)
_CUDA_HEAD_DIM = 256


def attention(
    *,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    past: torch.Tensor | None,
) -> torch.Tensor:
    """Scaled dot-product attention; query i sees all of ``past`` and the new rows 0..i.

    Args:
        q: [heads, n, head_dim], model dtype, contiguous; heads = group x kv_heads.
        k, v: [kv_heads, n, head_dim], the rows of the new ids.
        past: [2, kv_heads, rows, head_dim] keys and values in order, or None for no rows.

    Returns:
        [heads, n, head_dim] float32.
    """
    if not _fast(q):
        return naive_attention(q=q, k=k, v=v, past=past).float()
    near, near_sum = _partial(q, k, v, causal=True)
    if past is None:
        return near.float()
    kv_heads, _, dim = k.shape
    folded = q.view(kv_heads, -1, dim)
    far, far_sum = _partial(folded, past[0], past[1], causal=False)
    share = torch.sigmoid(far_sum.reshape(near_sum.shape) - near_sum)
    return torch.lerp(near.float(), far.reshape(near.shape).float(), share[..., None])


def naive_attention(
    *,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    past: torch.Tensor | None,
) -> torch.Tensor:
    """Plain twin of ``attention`` in one masked softmax; in float32, or float64 if q is."""
    if past is not None:
        k, v = torch.cat((past[0], k), dim=1), torch.cat((past[1], v), dim=1)
    group, (n, dim) = q.shape[0] // k.shape[0], q.shape[1:]
    work = torch.promote_types(q.dtype, torch.float32)
    q, k, v = q.to(work), k.to(work), v.to(work)
    k, v = k.repeat_interleave(group, dim=0), v.repeat_interleave(group, dim=0)
    scores = (q @ k.transpose(1, 2)) / math.sqrt(dim)
    seen = torch.ones(n, k.shape[1], dtype=torch.bool, device=q.device).tril_(k.shape[1] - n)
    return scores.masked_fill_(~seen, -math.inf).softmax(dim=-1) @ v


def _fast(q: torch.Tensor) -> bool:
    if q.device.type == "cpu":
        return q.dtype in (torch.float32, torch.bfloat16)
    return (
        q.device.type == "cuda"
        and q.dtype in _CUDA_DTYPES
        and q.shape[-1] <= _CUDA_HEAD_DIM
        and q.shape[-1] % 8 == 0
    )


def _partial(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax over one part of the keys: out [heads, n, dim], log-sum [heads, n] float32."""
    if q.device.type == "cpu":
        out, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q[None], k[None], v[None], 0.0, causal
        )
        return out[0], log_sum[0]
    if q.shape[0] != k.shape[0]:
        group = q.shape[0] // k.shape[0]
        k, v = k.repeat_interleave(group, dim=0), v.repeat_interleave(group, dim=0)
    out, log_sum = torch.ops.aten._scaled_dot_product_flash_attention(
        q[None], k[None], v[None], 0.0, causal
    )[:2]
    return out[0], log_sum[0]

"""The gated delta rule, whole chunks at a time, with its token-by-token twin beside it.

One value head keeps S [key_dim, value_dim]. Each token, with decay g <= 0 (log space):

    S <- exp(g) S;   S <- S + k (beta (v - S^T k))^T;   out <- S^T q / sqrt(key_dim)

with q and k scaled to length one. Padding is zeros, which leave S as it is. All float32.
Mathematics: Yang et al., "Gated Delta Networks", 2024 (the WY form of a chunk's updates).
"""

from __future__ import annotations

import torch
from torch.nn.functional import pad

CHUNK = 64
_EPS = 1e-6


def naive_gated_delta(
    *,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The recurrence as written above, token by token; same arguments as ``gated_delta``."""
    group = v.shape[1] // k.shape[1]
    q = (_unit(q) * q.shape[-1] ** -0.5).repeat_interleave(group, dim=1)
    k = _unit(k).repeat_interleave(group, dim=1)
    out = torch.empty_like(v)
    for t in range(q.shape[0]):
        state = state * g[t].exp()[:, None, None]
        told = (state * k[t][:, :, None]).sum(dim=1)
        delta = (v[t] - told) * beta[t][:, None]
        state = state + k[t][:, :, None] * delta[:, None, :]
        out[t] = (state * q[t][:, :, None]).sum(dim=1)
    return out, state


def gated_delta(
    *,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Read n tokens in chunks of at most 64.

    Args:
        q, k: [n, key_heads, key_dim] float32, any length. A key head serves
            ``value_heads / key_heads`` neighbouring value heads.
        v: [n, value_heads, value_dim] float32.
        g: [n, value_heads] float32, log of the decay, <= 0.
        beta: [n, value_heads] float32 in 0..1.
        state: [value_heads, key_dim, value_dim] float32; not written.

    Returns:
        out [n, value_heads, value_dim] and the new state, both new tensors.
    """
    n, values, value_dim = v.shape
    keys, key_dim = k.shape[1:]
    group = values // keys
    size = min(CHUNK, 1 << (n - 1).bit_length())
    chunks = -(-n // size)

    q = _chunked(q * _inverse_length(q).mul_(key_dim**-0.5), chunks, size)
    k = _chunked(k * _inverse_length(k), chunks, size)
    v = _chunked(v, chunks, size)
    beta = _chunked(beta[:, :, None], chunks, size)
    total = _chunked(g[:, :, None], chunks, size).cumsum(dim=2)
    grown = total.exp()

    # Decay from token j to token i of a chunk; above the diagonal it is cut off below.
    decay = (total - total.transpose(2, 3)).clamp_(max=0).exp_()
    decay = decay.view(chunks, keys, group, size, size)
    system = (k @ k.transpose(2, 3))[:, :, None] * decay
    system = system.view(chunks, values, size, size).mul_(beta)
    solved = invert_unit_lower(system)
    reads = (q @ k.transpose(2, 3))[:, :, None] * decay
    reads = reads.view(chunks, values, size, size).tril_()

    # What each token writes if S were zero, and what it takes off for the S it meets.
    written = (solved * beta.transpose(2, 3)) @ v
    wide_k = _widen(k, group)
    meets = torch.empty(chunks, values, 2 * size, key_dim, dtype=v.dtype, device=v.device)
    torch.matmul(solved * (beta * grown).transpose(2, 3), wide_k, out=meets[:, :, :size])
    torch.mul(_widen(q, group), grown, out=meets[:, :, size:])

    last = total[:, :, -1:]
    leaving = (wide_k * (last - total).exp()).transpose(2, 3)
    kept = last.exp()
    met = torch.empty(chunks, values, 2 * size, value_dim, dtype=v.dtype, device=v.device)
    for c in range(chunks):
        torch.bmm(meets[c], state, out=met[c])
        written[c].sub_(met[c, :, :size])
        state = torch.baddbmm(state * kept[c], leaving[c], written[c])
    out = met[:, :, size:] + reads @ written
    return out.transpose(1, 2).reshape(chunks * size, values, value_dim)[:n], state


def invert_unit_lower(system: torch.Tensor) -> torch.Tensor:
    """Inverse of I + the strictly lower part of ``system`` [..., s, s], s a power of two.

    Diagonal blocks are inverted and joined, two by two, until one is left: as stable as
    forward substitution, in a few batched products.
    """
    size = system.shape[-1]
    lower = system.reshape(-1, size, size)
    inverse = torch.eye(size, dtype=system.dtype, device=system.device)
    inverse = inverse.expand_as(lower).contiguous()
    block = 1
    while block < size:
        pairs = lower.shape[0], size // (2 * block), 2 * block, 2 * block
        joint = _diagonal(inverse, pairs)
        corner = _diagonal(lower, pairs)[..., block:, :block]
        joint[..., block:, :block] = -(
            joint[..., block:, block:] @ corner @ joint[..., :block, :block]
        )
        block *= 2
    return inverse.view(system.shape)


def _diagonal(matrices: torch.Tensor, shape: tuple[int, int, int, int]) -> torch.Tensor:
    """The blocks on the diagonal of [b, s, s] as a view [b, blocks, size, size]."""
    batch, row, column = matrices.stride()
    size = shape[2]
    return matrices.as_strided(shape, (batch, size * (row + column), row, column))


def _inverse_length(x: torch.Tensor) -> torch.Tensor:
    norm: torch.Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norm.square_().add_(_EPS).rsqrt_()


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x * _inverse_length(x)


def _widen(x: torch.Tensor, group: int) -> torch.Tensor:
    """[c, key_heads, s, d] as [c, value_heads, s, d]."""
    return x if group == 1 else x.repeat_interleave(group, dim=1)


def _chunked(x: torch.Tensor, chunks: int, size: int) -> torch.Tensor:
    """[n, heads, d] as a new contiguous [chunks, heads, size, d], zeros past n."""
    n, heads, dim = x.shape
    if n < chunks * size:
        x = pad(x, (0, 0, 0, 0, 0, chunks * size - n))
    return x.reshape(chunks, size, heads, dim).transpose(1, 2).contiguous()

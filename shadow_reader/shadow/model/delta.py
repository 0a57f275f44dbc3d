"""The gated delta rule, whole chunks at a time, with its token-by-token twin beside it.

One value head keeps S [key_dim, value_dim]. Each token, with decay g <= 0 (log space):

    S <- exp(g) S;   S <- S + k (beta (v - S^T k))^T;   out <- S^T q / sqrt(key_dim)

with q and k scaled to length one. Padding is zeros, which leave S as it is. All float32, but
for the running sums of g: their differences are taken in float64, or a long decay's rounding
would spoil the short ones beside it.
Mathematics: Yang et al., "Gated Delta Networks", 2024 (the WY form of a chunk's updates).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import pad

_CHUNK = 64
_NARROW_CHUNK = 32
"""For heads of fewer than 64 elements, where a chunk's squares cost more than its states."""
_BASE = 8
_EPS = 1e-6
_NOTHING = -200.0
"""A log decay whose factor is zero in float32; anything below it is the same."""


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
    """Read n tokens in chunks of 64, or of 32 where the heads are narrow.

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
    if n == 1:
        return naive_gated_delta(q=q, k=k, v=v, g=g, beta=beta, state=state)
    largest = _CHUNK if k.shape[2] >= _CHUNK else _NARROW_CHUNK
    size = min(largest, max(_BASE, 1 << (n - 1).bit_length()))
    parts = _within_chunks(q=q, k=k, v=v, g=g, beta=beta, size=size)

    state = state.clone(memory_format=torch.contiguous_format)
    writes, out = parts.writes, torch.empty_like(parts.writes)
    steps = zip(out, parts.asks, writes, parts.meets, parts.enters, parts.kept, strict=True)
    for told, ask, write, meet, enter, keep in steps:
        torch.bmm(ask, state, out=told)
        write.baddbmm_(meet, state, alpha=-1)
        state.mul_(keep).baddbmm_(enter, write)
    out.view(-1, size, value_dim).baddbmm_(parts.reads, writes.view(-1, size, value_dim))
    return out.transpose(1, 2).reshape(-1, values, value_dim)[:n], state


@dataclass(frozen=True, slots=True)
class _Parts:
    """What can be said of every chunk before the state that it meets is known.

    All [chunks, value_heads, size, ...] but ``reads`` [chunks * value_heads, size, size].
    """

    asks: torch.Tensor  # [.., key_dim] queries, decayed from the chunk's start
    meets: torch.Tensor  # [.., key_dim] what of the state each token's write takes off
    writes: torch.Tensor  # [.., value_dim] what each token would write if the state were zero
    enters: torch.Tensor  # [.., key_dim, size] keys, decayed to the chunk's end
    kept: torch.Tensor  # [.., 1, 1] the chunk's whole decay
    reads: torch.Tensor  # what each token reads of those before it in the chunk


def _within_chunks(
    *,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    size: int,
) -> _Parts:
    values, value_dim = v.shape[1:]
    keys, key_dim = k.shape[1:]
    chunks, group = -(-v.shape[0] // size), values // keys
    square, wide = (chunks, values, size, size), (chunks, keys, group, size, -1)

    q = _chunked(q, chunks, size, _inverse_length(q).mul_(key_dim**-0.5))
    k = _chunked(k, chunks, size, _inverse_length(k))
    v = _chunked(v, chunks, size).view(-1, size, value_dim)
    beta = _chunked(beta[:, :, None], chunks, size)
    decay, grown, leaving, kept = _decays(_chunked(g[:, :, None].double(), chunks, size))

    # Above their diagonals these hold anything, infinities too: nothing there is read.
    flat_q, flat_k = q.view(-1, size, key_dim), k.view(-1, size, key_dim)
    turned = flat_k.transpose(1, 2)
    system = torch.bmm(flat_k, turned).view(chunks, keys, 1, size, size) * decay.view(wide)
    system = system.view(square).mul_(beta)
    reads = torch.bmm(flat_q, turned).view(chunks, keys, 1, size, size) * decay.view(wide)
    solved = invert_unit_lower(system.view(-1, size, size)).view(square)

    meets = (solved * (beta * grown).transpose(2, 3)).view(-1, group * size, size)
    writes = solved.mul_(beta.transpose(2, 3)).view(-1, size, size)
    deep = chunks, values, size, key_dim
    return _Parts(
        asks=(q[:, :, None] * grown.view(wide)).view(deep),
        meets=torch.bmm(meets, flat_k).view(deep),
        writes=torch.bmm(writes, v).view(chunks, values, size, value_dim),
        enters=(k[:, :, None] * leaving.view(wide)).view(deep).transpose(2, 3),
        kept=kept,
        reads=reads.view(-1, size, size).tril_(),
    )


def invert_unit_lower(system: torch.Tensor) -> torch.Tensor:
    """Inverse of I + the strictly lower part of each of ``system`` [b, s, s], s = 8, 16, 32, ...

    Blocks of 8 on the diagonal by the finite series (I - A)(I + A^2)(I + A^4), then joined two
    by two: within a few roundings of forward substitution, in few batched products.
    """
    batch, size = system.shape[:2]
    inverse = torch.zeros_like(system)
    power = _diagonal(system, _BASE).tril(-1).view(-1, _BASE, _BASE)
    series = torch.eye(_BASE, dtype=system.dtype, device=system.device) - power
    for _ in range(_BASE.bit_length() - 2):
        power = torch.bmm(power, power)
        series = torch.baddbmm(series, series, power)
    _diagonal(inverse, _BASE).copy_(series.view(batch, -1, _BASE, _BASE))
    block = _BASE
    while block < size:
        joint = _diagonal(inverse, 2 * block)
        corner = _diagonal(system, 2 * block)[:, :, block:, :block].reshape(-1, block, block)
        first = joint[:, :, :block, :block].reshape(-1, block, block)
        second = joint[:, :, block:, block:].reshape(-1, block, block)
        corner = torch.bmm(torch.bmm(second, corner), first).neg_()
        joint[:, :, block:, :block] = corner.view(batch, -1, block, block)
        block *= 2
    return inverse


def _decays(
    g: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Decay factors, float32, of log decays [chunks, heads, size, 1] in float64.

    From token j to token i [.., size, size] (below and on the diagonal); from the chunk's start
    to i and from i to its end [.., size, 1]; over the whole chunk [.., 1, 1].
    """
    total = g.clamp(min=_NOTHING).cumsum(dim=2)
    size = g.shape[2]
    between = torch.empty(*g.shape[:2], size, size, dtype=torch.float32, device=g.device)
    torch.sub(total, total.transpose(2, 3), out=between)
    grown = total.float().exp_()
    leaving = (total[:, :, -1:] - total).float().exp_()
    return between.exp_(), grown, leaving, grown[:, :, -1:]


def _diagonal(matrices: torch.Tensor, size: int) -> torch.Tensor:
    """The blocks on the diagonal of [b, s, s] as a view [b, s / size, size, size]."""
    batch, row, column = matrices.stride()
    shape = matrices.shape[0], matrices.shape[1] // size, size, size
    return matrices.as_strided(shape, (batch, size * (row + column), row, column))


def _inverse_length(x: torch.Tensor) -> torch.Tensor:
    norm: torch.Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norm.square_().add_(_EPS).rsqrt_()


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x * _inverse_length(x)


def _chunked(
    x: torch.Tensor, chunks: int, size: int, scale: torch.Tensor | None = None
) -> torch.Tensor:
    """[n, heads, d] (times ``scale``) as a new contiguous [chunks, heads, size, d], zero past n."""
    lacking = chunks * size - x.shape[0]
    if lacking:
        x = pad(x, (0, 0, 0, 0, 0, lacking))
    x = x.view(chunks, size, *x.shape[1:]).transpose(1, 2)
    if scale is None:
        return x.contiguous()
    if lacking:
        scale = pad(scale, (0, 0, 0, 0, 0, lacking))
    scale = scale.view(chunks, size, -1, 1).transpose(1, 2)
    return torch.mul(x, scale, out=x.new_empty(x.shape))

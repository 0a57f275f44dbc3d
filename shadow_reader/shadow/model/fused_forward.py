"""The forward in fused kernels, over buffers that never move: what a CUDA graph is made of.

Law: whatever changes from call to call lies in the buffers ``ids`` and ``numbers``, never in a
launch. Ids past the count are read and change nothing that is handed out. The products are
cuBLAS's. Twin: ``Qwen35.forward``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from shadow_reader.shadow.model.config import ModelConfig
from shadow_reader.shadow.model.fused_attention import (
    KEYS,
    QUERIES,
    AttentionScratch,
    fused_attention,
    key_shares,
)
from shadow_reader.shadow.model.fused_delta import CHUNK, DeltaScratch, fused_delta
from shadow_reader.shadow.model.fused_numbers import PAGES, POSITION
from shadow_reader.shadow.model.fused_rows import gated_norm, norm_rows, silu_mul
from shadow_reader.shadow.model.layers import Rotary
from shadow_reader.shadow.model.parameters import (
    AttentionParameters,
    DeltaParameters,
    LayerParameters,
    Parameters,
)


class Arena:
    """Named buffers, each allocated once at its largest, from which calls of any size take views.

    Two sizes share memory: what one call leaves there the next overwrites.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._held: dict[str, torch.Tensor] = {}

    def take(self, name: str, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        """A contiguous view of buffer ``name``; the largest shape must be asked for first."""
        size = math.prod(shape)
        if name not in self._held:
            self._held[name] = torch.zeros(size, dtype=dtype, device=self.device)
        held = self._held[name]
        assert held.dtype == dtype, f"{name} is {held.dtype}, not {dtype}"
        assert size <= held.numel(), f"{name} has {held.numel()} elements, not {size}"
        return held[:size].view(shape)


class ChunkBuffers:
    """Everything a forward over ``n`` ids reads and writes besides weights, pages and states.

    Inputs: ``ids`` [n] int64 and ``numbers`` int64 (``fused_numbers``). Output: ``hidden`` [n,
    hidden]; new rows and states go where the numbers say. ``x`` and ``told`` are the anchors of
    what is in the model dtype and of what is float32.
    """

    def __init__(self, config: ModelConfig, n: int, dtype: torch.dtype, arena: Arena) -> None:
        assert n % QUERIES == 0, f"{n} is no multiple of {QUERIES}"
        c, single, take = config, torch.float32, arena.take
        self.n = n
        self.ids = take("ids", torch.int64, n)
        self.numbers = take("numbers", torch.int64, PAGES + c.context // KEYS + 1)
        self.hidden = take("hidden", dtype, n, c.hidden)
        self.x = take("x", dtype, n, c.hidden)
        self.normed = take("normed", dtype, n, c.hidden)
        self.inner = take("inner", dtype, n, c.conv_dim + c.value_width + 2 * c.linear_value_heads)
        self.told = take("told", single, n, c.linear_value_heads, c.linear_value_dim)
        self.mixed = take("mixed", dtype, n, c.value_width)
        self.projected = take(
            "projected", dtype, n, 2 * c.heads * c.head_dim + 2 * c.kv_heads * c.head_dim
        )
        self.attended = take("attended", dtype, n, c.heads * c.head_dim)
        self.wide = take("wide", dtype, n, 2 * c.intermediate)
        self.thin = take("thin", dtype, n, c.intermediate)
        self.delta = self._delta(config, dtype, arena)
        self.attention = self._attention(config, dtype, arena)

    def _delta(self, c: ModelConfig, dtype: torch.dtype, arena: Arena) -> DeltaScratch:
        heads, n, take = c.linear_value_heads, self.n, arena.take
        slots, dim = 2 * c.linear_key_heads + heads, c.linear_key_dim
        return DeltaScratch(
            qkv=take("qkv", dtype, slots, n, dim),
            asks=take("asks", dtype, heads, n, dim),
            meets=take("meets", dtype, heads, n, dim),
            writes=take("writes", dtype, heads, n, dim),
            enters=take("enters", dtype, heads, n, dim),
            reads=take("reads", dtype, heads, n, CHUNK),
            kept=take("kept", torch.float32, heads, n // CHUNK),
        )

    def _attention(self, c: ModelConfig, dtype: torch.dtype, arena: Arena) -> AttentionScratch:
        # A share is a program's work on 128 queries; few queries have many shares, so all
        # lengths take about the same room, but not exactly: the most is asked for first.
        n, single = self.n, torch.float32
        shares = key_shares(c.heads, n)
        most = max(QUERIES * c.heads * key_shares(c.heads, QUERIES), shares * c.heads * n, 16384)
        arena.take("parts", dtype, most * c.head_dim)
        arena.take("tops", single, most)
        arena.take("sums", single, most)
        return AttentionScratch(
            q=arena.take("q", dtype, c.heads, n, c.head_dim),
            parts=arena.take("parts", dtype, shares, c.heads, n, c.head_dim),
            tops=arena.take("tops", single, shares, c.heads, n),
            sums=arena.take("sums", single, shares, c.heads, n),
        )


class FusedForward:
    """The kernels of one forward over one set of buffers, in order."""

    def __init__(
        self, config: ModelConfig, parameters: Parameters, rotary: Rotary, buffers: ChunkBuffers
    ) -> None:
        self._config = config
        self._parameters = parameters
        self._rotary = rotary
        self._b = buffers

    def run(self, after: Callable[[int], None] | None = None) -> None:
        """Launch everything; inputs are in the buffers, outputs come there.

        ``after`` is called behind each layer, when ``x`` is what the layer leaves.
        """
        b, p, eps = self._b, self._parameters, self._config.norm_eps
        torch.index_select(p.embed, 0, b.ids, out=b.x)
        cos, sin = self._rotary.angles_at(b.numbers[POSITION], b.n)
        linear = full = 0
        for index, layer in enumerate(p.layers):
            norm_rows(x=b.x, weight=layer.mixer_norm, eps=eps, out=b.normed)
            if isinstance(layer.mixer, DeltaParameters):
                self._delta(layer.mixer, linear)
                linear += 1
            else:
                self._attend(layer.mixer, full, cos, sin)
                full += 1
            self._mlp(layer)
            if after is not None:
                after(index)
        norm_rows(x=b.x, weight=p.norm, eps=eps, out=b.hidden)

    def _delta(self, p: DeltaParameters, index: int) -> None:
        b, c = self._b, self._config
        torch.mm(b.normed, p.inner.t(), out=b.inner)
        fused_delta(
            inner=b.inner,
            numbers=b.numbers,
            layer=index,
            taps=p.conv,
            rate=p.rate,
            dt_bias=p.dt_bias,
            columns=b.x,
            states=b.told,
            scratch=b.delta,
            key_heads=c.linear_key_heads,
            out=b.told,
        )
        z = b.inner[:, c.conv_dim : c.conv_dim + c.value_width]
        gated_norm(x=b.told, z=z, weight=p.norm, eps=c.norm_eps, out=b.mixed)
        b.x.addmm_(b.mixed, p.out.t())

    def _attend(
        self, p: AttentionParameters, index: int, cos: torch.Tensor, sin: torch.Tensor
    ) -> None:
        b = self._b
        torch.mm(b.normed, p.qkv.t(), out=b.projected)
        fused_attention(
            mixed=b.projected,
            numbers=b.numbers,
            rows=b.x,
            layer=index,
            q_norm=p.q_norm,
            k_norm=p.k_norm,
            eps=self._config.norm_eps,
            cos=cos,
            sin=sin,
            scratch=b.attention,
            kv_heads=self._config.kv_heads,
            out=b.attended,
        )
        b.x.addmm_(b.attended, p.out.t())

    def _mlp(self, layer: LayerParameters) -> None:
        b = self._b
        norm_rows(x=b.x, weight=layer.mlp_norm, eps=self._config.norm_eps, out=b.normed)
        torch.mm(b.normed, layer.gate_up.t(), out=b.wide)
        silu_mul(wide=b.wide, out=b.thin)
        b.x.addmm_(b.thin, layer.down.t())

"""The forward: ids, position, past rows and state in; rows and state out; nothing is changed.

Law: the result's bits depend on these arguments and the build alone, never on where the pages
lie, how they are cut, or what ran before. Nothing is kept between calls. On a GPU, in bfloat16 and
with triton installed, fused kernels in CUDA graphs do it (``fused_graphs.py``); plain torch here is
their twin, and the way everywhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch.nn.functional import embedding, linear, silu, softplus

from shadow_reader.shadow.model.attention import attention
from shadow_reader.shadow.model.config import ModelConfig
from shadow_reader.shadow.model.delta import gated_delta
from shadow_reader.shadow.model.kernels import arithmetic, fused
from shadow_reader.shadow.model.layers import Rotary, causal_conv, rms_norm
from shadow_reader.shadow.model.parameters import (
    AttentionParameters,
    DeltaParameters,
    LayerParameters,
    Parameters,
)

if TYPE_CHECKING:
    from shadow_reader.shadow.model.fused_graphs import ChunkGraphs

Watch: TypeAlias = Callable[[int, torch.Tensor], None]
"""Shown, after each decoder layer, its number from 0 and the residual stream [n, hidden]."""


@dataclass(frozen=True, slots=True)
class RecurrentState:
    """The part of a session's state that is not KV rows.

    ``recurrent`` is [linear_layers, value_heads, key_dim, value_dim], always float32; ``conv`` is
    [linear_layers, conv_dim, kernel - 1] in the model dtype, the newest column last.
    """

    recurrent: torch.Tensor
    conv: torch.Tensor


@dataclass(frozen=True, slots=True)
class Step:
    """What n ids give.

    ``hidden`` is [n, hidden] after the final norm; ``rows`` is [full_layers, 2, kv_heads, n,
    head_dim], keys (after norm and rotary) then values; both in the model dtype. ``state`` is
    the state after the n ids. All are new tensors.
    """

    hidden: torch.Tensor
    rows: torch.Tensor
    state: RecurrentState


class Qwen35:
    """A loaded model; immutable, so any number of sessions and forks share one.

    Args:
        config: the shape the parameters were checked against.
        parameters: fused weights on ``device`` in ``dtype``.
        name: what the model was loaded as.
        weights_hash: hex digest of configuration and weights as stored.
    """

    def __init__(
        self,
        *,
        config: ModelConfig,
        parameters: Parameters,
        device: torch.device,
        dtype: torch.dtype,
        name: str,
        weights_hash: str,
    ) -> None:
        self.config = config
        self.device = device
        self.dtype = dtype
        self.name = name
        self.weights_hash = weights_hash
        self._parameters = parameters
        self._rotary = Rotary(config.rotary_dim, config.rope_theta, device)
        self._graphs = self._chunk_graphs()

    def _chunk_graphs(self) -> ChunkGraphs | None:
        """The fused way, where there is one; triton is imported only then."""
        if not fused(self.config, self.device, self.dtype):
            return None
        from shadow_reader.shadow.model.fused_graphs import ChunkGraphs

        return ChunkGraphs(
            self.config, self._parameters, self._rotary, device=self.device, dtype=self.dtype
        )

    def prepare(self) -> None:
        """Make beforehand what forwards need, so that later they only run."""
        if self._graphs is not None:
            self._graphs.prepare()

    @property
    def arithmetic(self) -> str:
        """What computes a forward: ``plain`` torch, or the fused kernels by their compiler."""
        return arithmetic(self.config, self.device, self.dtype)

    @property
    def build(self) -> str:
        """What besides the weights the bits depend on: library, processor, and CPU threads.

        States of another build are as good but not bit-equal.
        """
        if self.device.type == "cuda":
            name = torch.cuda.get_device_name(self.device)
            return f"torch {torch.__version__}, {self.arithmetic}, {name}"
        capability = torch.backends.cpu.get_cpu_capability()
        return f"torch {torch.__version__}, {capability}, {torch.get_num_threads()} threads"

    @property
    def weight_bytes(self) -> int:
        """Bytes the weights take on the device."""
        return sum(t.numel() * t.element_size() for t in self._parameters.tensors())

    def empty_state(self) -> RecurrentState:
        """The state before the first id: zeros."""
        config = self.config
        heads = config.linear_value_heads, config.linear_key_dim, config.linear_value_dim
        columns = config.linear_layers, config.conv_dim, config.conv_kernel - 1
        return RecurrentState(
            torch.zeros(config.linear_layers, *heads, device=self.device),
            torch.zeros(*columns, device=self.device, dtype=self.dtype),
        )

    @torch.inference_mode()
    def forward(
        self,
        ids: torch.Tensor,
        *,
        position: int,
        past: Sequence[torch.Tensor],
        state: RecurrentState,
        watch: Watch | None = None,
    ) -> Step:
        """Read ``ids`` [n] int64 at ``position``, n >= 1, every id within the vocabulary.

        Args:
            past: the rows before ``position`` in order, each [full_layers, 2, kv_heads, any,
                head_dim] in the model dtype; together exactly ``position`` rows.
            state: the state at ``position``.
            watch: sees what each layer leaves, in the model dtype, and copies what it wants of it;
                in order of position where a long call is read in parts. The result's bits are the
                same with it; on a GPU it takes longer, kernels being launched one by one.
        """
        self._check(ids, position, past, state)
        if self._graphs is not None:
            hidden, rows, recurrent, conv = self._graphs.read(
                ids,
                position=position,
                past=past,
                recurrent=state.recurrent,
                conv=state.conv,
                watch=watch,
            )
            return Step(hidden, rows, RecurrentState(recurrent, conv))
        call = _Call(self, ids.shape[0], position, past, state)
        x = embedding(ids, self._parameters.embed)
        for index, layer in enumerate(self._parameters.layers):
            x = call.layer(layer, x)
            if watch is not None:
                watch(index, x)
        hidden = rms_norm(x, self._parameters.norm, self.config.norm_eps)
        return Step(hidden, call.rows, RecurrentState(call.recurrent, call.conv))

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor, ids: torch.Tensor | None = None) -> torch.Tensor:
        """Logits of ``hidden`` [n, hidden]: [n, vocab] float32, or [n, len(ids)] for ``ids``.

        Chosen rows are multiplied in float32; the whole head is in the model dtype.
        """
        hidden = hidden.clone(memory_format=torch.contiguous_format)
        if ids is None:
            return linear(hidden, self._parameters.head).float()
        return linear(hidden.float(), self._parameters.head[ids].float())

    def _check(
        self,
        ids: torch.Tensor,
        position: int,
        past: Sequence[torch.Tensor],
        state: RecurrentState,
    ) -> None:
        config = self.config
        assert ids.ndim == 1, f"ids are [n], not {tuple(ids.shape)}"
        assert ids.shape[0] >= 1, "at least one id"
        assert ids.dtype == torch.int64, f"ids are int64, not {ids.dtype}"
        end = position + ids.shape[0]
        assert 0 <= position < end <= config.context, f"{position}..{end} leaves the context"
        rows, good = 0, tuple[int, ...]()
        for page in past:
            found = page.shape
            if found != good:
                shape = config.full_layers, 2, config.kv_heads, found[3], config.head_dim
                assert found == shape, f"a page is {shape}, not {tuple(found)}"
                good = found
            assert page.dtype == self.dtype, f"a page is {self.dtype}, not {page.dtype}"
            rows += found[3]
        assert rows == position, f"past holds {rows} rows at position {position}"
        assert state.recurrent.dtype == torch.float32, "the recurrent state is float32"
        assert state.conv.dtype == self.dtype, f"the convolution state is {self.dtype}"


class _Call:
    """One forward under way: the tensors it will return and the scratch its layers share."""

    def __init__(
        self,
        model: Qwen35,
        n: int,
        position: int,
        past: Sequence[torch.Tensor],
        state: RecurrentState,
    ) -> None:
        config = model.config
        self.config = config
        self.n = n
        # Fresh copies: products may round differently with the alignment of their operands.
        self.recurrent = state.recurrent.clone(memory_format=torch.contiguous_format)
        self.conv = state.conv.clone(memory_format=torch.contiguous_format)
        self.past = past
        shape = config.full_layers, 2, config.kv_heads, n, config.head_dim
        self.rows = torch.empty(shape, device=model.device, dtype=model.dtype)
        gathered = 2, config.kv_heads, position, config.head_dim
        self.gathered = torch.empty(gathered, device=model.device, dtype=model.dtype)
        self.rotary = model._rotary
        self.cos, self.sin = model._rotary.angles(position, n, model.dtype)
        self._linear = 0
        self._full = 0

    def layer(self, layer: LayerParameters, x: torch.Tensor) -> torch.Tensor:
        """One decoder layer on [n, hidden]; linear and full layers count on their own."""
        eps = self.config.norm_eps
        normed = rms_norm(x, layer.mixer_norm, eps)
        if isinstance(layer.mixer, DeltaParameters):
            mixed = self._delta(layer.mixer, normed)
        else:
            mixed = self._attend(layer.mixer, normed)
        x = torch.addmm(x, mixed, layer.mixer.out.t())
        wide = linear(rms_norm(x, layer.mlp_norm, eps), layer.gate_up)
        gate, up = wide.chunk(2, dim=-1)
        return torch.addmm(x, silu(gate).mul_(up), layer.down.t())

    def _delta(self, p: DeltaParameters, x: torch.Tensor) -> torch.Tensor:
        """Gated-DeltaNet mixer before its output projection: [n, value_width]."""
        config, n, index = self.config, self.n, self._linear
        self._linear += 1
        before = config.conv_kernel - 1
        columns = x.new_empty(before + n, config.conv_dim)
        columns[:before] = self.conv[index].t()
        torch.mm(x, p.qkv.t(), out=columns[before:])
        self.conv[index] = columns[n:].t()
        widths = [config.key_width, config.key_width, config.value_width]
        q, k, v = torch.split(causal_conv(columns, p.conv), widths, dim=-1)
        heads = config.linear_value_heads
        gates = linear(x, p.zba)
        z, b, a = torch.split(gates, [config.value_width, heads, heads], dim=-1)
        out, state = gated_delta(
            q=q.view(n, config.linear_key_heads, config.linear_key_dim),
            k=k.view(n, config.linear_key_heads, config.linear_key_dim),
            v=v.view(n, heads, config.linear_value_dim),
            g=softplus(a.float() + p.dt_bias).mul_(p.rate),
            beta=b.float().sigmoid(),
            state=self.recurrent[index],
        )
        self.recurrent[index] = state
        out = rms_norm(out, p.norm, config.norm_eps).reshape(n, -1)
        return out.mul_(silu(z.float())).to(x.dtype)

    def _attend(self, p: AttentionParameters, x: torch.Tensor) -> torch.Tensor:
        """Full-attention mixer before its output projection: [n, heads * head_dim]."""
        config, n, index = self.config, self.n, self._full
        self._full += 1
        heads, kv_heads, dim = config.heads, config.kv_heads, config.head_dim
        mixed = linear(x, p.qkv)
        widths = [heads * 2 * dim, kv_heads * dim, kv_heads * dim]
        q_gate, k, v = torch.split(mixed, widths, dim=-1)
        q, gate = torch.split(q_gate.view(n, heads, 2 * dim), dim, dim=-1)
        q = rms_norm(q.transpose(0, 1), p.q_norm, config.norm_eps).contiguous()
        self.rotary.turn(q, self.cos, self.sin)
        keys, values = self.rows[index]
        keys.copy_(rms_norm(k.view(n, kv_heads, dim).transpose(0, 1), p.k_norm, config.norm_eps))
        self.rotary.turn(keys, self.cos, self.sin)
        values.copy_(v.view(n, kv_heads, dim).transpose(0, 1))
        out = attention(q=q, k=keys, v=values, past=self._gather(index))
        out = out.transpose(0, 1) * torch.sigmoid(gate.float())
        return out.reshape(n, heads * dim).to(x.dtype)

    def _gather(self, index: int) -> torch.Tensor | None:
        """All past keys and values of one layer, side by side in this call's scratch."""
        if self.gathered.shape[2] == 0:
            return None
        return torch.cat([page[index] for page in self.past], dim=2, out=self.gathered)

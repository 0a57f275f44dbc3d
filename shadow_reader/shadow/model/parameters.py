"""The weights as the forward wants them: fused once at load, never written afterwards.

Matrices are in the model dtype; norms, convolution taps and gates are float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields

import torch

from shadow_reader.shadow.model.config import LINEAR, ModelConfig
from shadow_reader.shadow.model.names import EMBED, FINAL_NORM, HEAD, layer_prefix

Read = Callable[[str], torch.Tensor]
"""Canonical name to a CPU tensor of the checked shape; called once for each name."""


@dataclass(frozen=True, slots=True)
class DeltaParameters:
    """One Gated-DeltaNet mixer."""

    inner: torch.Tensor  # [conv_dim + value_width + 2 * value_heads, hidden]: qkv, then zba
    conv: torch.Tensor  # [kernel, conv_dim] float32
    rate: torch.Tensor  # [value_heads] float32: -exp(A_log)
    dt_bias: torch.Tensor  # [value_heads] float32
    norm: torch.Tensor  # [value_dim] float32
    out: torch.Tensor  # [hidden, value_width]

    @property
    def qkv(self) -> torch.Tensor:
        """Queries, keys, values: [conv_dim, hidden]."""
        return self.inner[: self.conv.shape[1]]

    @property
    def zba(self) -> torch.Tensor:
        """Output gate, beta, decay: [value_width + 2 * value_heads, hidden]."""
        return self.inner[self.conv.shape[1] :]


@dataclass(frozen=True, slots=True)
class AttentionParameters:
    """One full-attention mixer."""

    qkv: torch.Tensor  # [heads * 2 * head_dim + 2 * kv_heads * head_dim, hidden]
    q_norm: torch.Tensor  # [head_dim] float32, one added
    k_norm: torch.Tensor  # [head_dim] float32, one added
    out: torch.Tensor  # [hidden, heads * head_dim]


@dataclass(frozen=True, slots=True)
class LayerParameters:
    """One decoder layer; its kind is the mixer's type."""

    mixer: DeltaParameters | AttentionParameters
    mixer_norm: torch.Tensor  # [hidden] float32, one added
    mlp_norm: torch.Tensor  # [hidden] float32, one added
    gate_up: torch.Tensor  # [2 * intermediate, hidden]
    down: torch.Tensor  # [hidden, intermediate]


@dataclass(frozen=True, slots=True)
class Parameters:
    """The whole text model."""

    embed: torch.Tensor  # [vocab, hidden]
    layers: tuple[LayerParameters, ...]
    norm: torch.Tensor  # [hidden] float32, one added
    head: torch.Tensor  # [vocab, hidden]; the same tensor as embed when tied

    def tensors(self) -> Iterator[torch.Tensor]:
        """Every distinct tensor, to count bytes or to compare."""
        yield self.embed
        yield self.norm
        if self.head is not self.embed:
            yield self.head
        for layer in self.layers:
            for part in (layer, layer.mixer):
                for field in fields(part):
                    value = getattr(part, field.name)
                    if isinstance(value, torch.Tensor):
                        yield value


class ParameterBuilder:
    """Reads canonical tensors and fuses them, layer by layer, on ``device``."""

    def __init__(
        self, config: ModelConfig, read: Read, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._config = config
        self._read = read
        self._device = device
        self._dtype = dtype

    def build(self) -> Parameters:
        """Every tensor of ``tensor_shapes`` is read exactly once."""
        config = self._config
        embed = self._matrix([EMBED])
        return Parameters(
            embed=embed,
            layers=tuple(self._layer(i, kind) for i, kind in enumerate(config.layer_types)),
            norm=self._vector(FINAL_NORM) + 1,
            head=embed if config.tied else self._matrix([HEAD]),
        )

    def _layer(self, index: int, kind: str) -> LayerParameters:
        at = layer_prefix(index)
        mixer = self._delta if kind == LINEAR else self._attention
        return LayerParameters(
            mixer=mixer(at),
            mixer_norm=self._vector(at + "input_layernorm.weight") + 1,
            mlp_norm=self._vector(at + "post_attention_layernorm.weight") + 1,
            gate_up=self._matrix([at + "mlp.gate_proj.weight", at + "mlp.up_proj.weight"]),
            down=self._matrix([at + "mlp.down_proj.weight"]),
        )

    def _delta(self, at: str) -> DeltaParameters:
        at += "linear_attn."
        return DeltaParameters(
            inner=self._matrix([at + f"in_proj_{part}.weight" for part in ("qkv", *"zba")]),
            conv=self._vector(at + "conv1d.weight").squeeze(1).t().contiguous(),
            rate=-self._vector(at + "A_log").exp(),
            dt_bias=self._vector(at + "dt_bias"),
            norm=self._vector(at + "norm.weight"),
            out=self._matrix([at + "out_proj.weight"]),
        )

    def _attention(self, at: str) -> AttentionParameters:
        at += "self_attn."
        return AttentionParameters(
            qkv=self._matrix([at + f"{part}_proj.weight" for part in "qkv"]),
            q_norm=self._vector(at + "q_norm.weight") + 1,
            k_norm=self._vector(at + "k_norm.weight") + 1,
            out=self._matrix([at + "o_proj.weight"]),
        )

    def _matrix(self, names: Sequence[str]) -> torch.Tensor:
        parts = [self._read(name).to(self._device, self._dtype) for name in names]
        return torch.cat(parts).contiguous()

    def _vector(self, name: str) -> torch.Tensor:
        return self._read(name).to(self._device, torch.float32, copy=True)

"""The shape of a Qwen3.5 dense text model; whatever cannot be computed exactly is refused here.

A setting that this reader does not implement is a ``ModelError`` that lists every one found,
never a value silently replaced by a default.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from shadow_reader.errors import ModelError

LayerType = Literal["linear_attention", "full_attention"]

LINEAR: LayerType = "linear_attention"
FULL: LayerType = "full_attention"

TEXT_MODEL_TYPE = "qwen3_5_text"
MODEL_TYPES = ("qwen3_5", TEXT_MODEL_TYPE)

_SIZES = {
    "hidden": "hidden_size",
    "intermediate": "intermediate_size",
    "vocab": "vocab_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "linear_key_heads": "linear_num_key_heads",
    "linear_value_heads": "linear_num_value_heads",
    "linear_key_dim": "linear_key_head_dim",
    "linear_value_dim": "linear_value_head_dim",
    "conv_kernel": "linear_conv_kernel_dim",
    "context": "max_position_embeddings",
}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes of one model; all counts are of elements unless the name says bytes.

    ``context`` is the greatest number of ids the model was made for.
    """

    hidden: int
    intermediate: int
    vocab: int
    layer_types: tuple[LayerType, ...]
    heads: int
    kv_heads: int
    head_dim: int
    linear_key_heads: int
    linear_value_heads: int
    linear_key_dim: int
    linear_value_dim: int
    conv_kernel: int
    rotary_dim: int
    rope_theta: float
    norm_eps: float
    context: int
    tied: bool

    @classmethod
    def from_folder(cls, path: Path) -> ModelConfig:
        """Read ``config.json`` of a model folder, multimodal or text-only.

        Raises:
            ModelError: no folder, no or broken config.json, another architecture, or settings
                that this reader does not implement (all of them are listed).
        """
        if not path.is_dir():
            raise ModelError(f"no model folder at {path}", path=str(path))
        file = path / "config.json"
        try:
            loaded = json.loads(file.read_bytes())
        except FileNotFoundError:
            raise ModelError(f"{path} holds no config.json", path=str(file)) from None
        except (OSError, ValueError) as error:
            raise ModelError(f"{file} cannot be read: {error}", path=str(file)) from error
        if not isinstance(loaded, dict):
            raise ModelError(f"{file} is not a JSON object", path=str(file))
        return cls.from_json(loaded, where=str(file))

    @classmethod
    def from_json(cls, loaded: Mapping[str, Any], *, where: str = "config.json") -> ModelConfig:
        """Read a parsed ``config.json``; ``where`` names it in errors.

        Raises:
            ModelError: see ``from_folder``.
        """
        reading = _Reading(loaded)
        config = reading.config()
        if config is None or reading.problems:
            listed = "; ".join(reading.problems)
            raise ModelError(f"{where}: {listed}", path=where, problems=reading.problems)
        return config

    def to_json(self) -> dict[str, Any]:
        """Every field as plain JSON values, in a fixed order; part of the weights hash."""
        return asdict(self)

    @property
    def layers(self) -> int:
        """All decoder layers."""
        return len(self.layer_types)

    @property
    def full_layers(self) -> int:
        """Layers that keep KV rows."""
        return self.layer_types.count(FULL)

    @property
    def linear_layers(self) -> int:
        """Layers that keep recurrent and convolution state."""
        return self.layer_types.count(LINEAR)

    @property
    def group(self) -> int:
        """Query heads served by one key/value head."""
        return self.heads // self.kv_heads

    @property
    def key_width(self) -> int:
        """All key heads of a linear layer side by side."""
        return self.linear_key_heads * self.linear_key_dim

    @property
    def value_width(self) -> int:
        """All value heads of a linear layer side by side."""
        return self.linear_value_heads * self.linear_value_dim

    @property
    def conv_dim(self) -> int:
        """Channels of a linear layer's causal convolution: queries, keys, values."""
        return 2 * self.key_width + self.value_width

    def row_bytes(self, itemsize: int) -> int:
        """Bytes of one id's KV rows in all full-attention layers, at ``itemsize`` an element."""
        return self.full_layers * 2 * self.kv_heads * self.head_dim * itemsize

    def state_bytes(self, itemsize: int) -> int:
        """Bytes of one recurrent (float32) and convolution (``itemsize``) state."""
        recurrent = self.linear_value_heads * self.linear_key_dim * self.linear_value_dim * 4
        conv = self.conv_dim * (self.conv_kernel - 1) * itemsize
        return self.linear_layers * (recurrent + conv)


class _Reading:
    """One pass over a config.json; collects every problem instead of stopping at the first."""

    def __init__(self, loaded: Mapping[str, Any]) -> None:
        self.outer = loaded
        self.problems: list[str] = []
        inner = loaded.get("text_config", loaded)
        self.text: Mapping[str, Any] = inner if isinstance(inner, dict) else {}
        if not isinstance(inner, dict):
            self.problems.append(f"text_config is {inner!r}, not an object")

    def config(self) -> ModelConfig | None:
        if not self._architecture():
            return None
        self._unsupported()
        sizes = {field: self._size(key) for field, key in _SIZES.items()}
        layer_types = self._layer_types()
        rope = self._rope()
        theta = self._number(rope, "rope_theta")
        factor = self._number(rope, "partial_rotary_factor", self.text, 0.25)
        eps = self._number(self.text, "rms_norm_eps")
        tied = self._tied()
        self._divisible(sizes)
        rotary_dim = int(sizes["head_dim"] * factor)
        if rotary_dim < 2 or rotary_dim % 2 or rotary_dim > sizes["head_dim"]:
            self.problems.append(
                f"partial_rotary_factor {factor} of head_dim {sizes['head_dim']} is no even size"
            )
        if self.problems:
            return None
        return ModelConfig(
            layer_types=layer_types,
            rope_theta=theta,
            rotary_dim=rotary_dim,
            norm_eps=eps,
            tied=tied,
            **sizes,
        )

    def _architecture(self) -> bool:
        found = self.outer.get("model_type")
        inner = self.text.get("model_type", TEXT_MODEL_TYPE)
        if found in MODEL_TYPES and inner in MODEL_TYPES:
            return True
        self.problems.append(
            f"model_type is {found!r} with text {inner!r}; this reader reads {MODEL_TYPES[0]!r}"
        )
        return False

    def _unsupported(self) -> None:
        for key, only in (
            ("hidden_act", "silu"),
            ("attention_bias", False),
            ("attn_output_gate", True),
        ):
            found = self.text.get(key, only)
            if found != only:
                self.problems.append(f"{key} is {found!r}; only {only!r} is supported")
        for where in (self.outer, self.text):
            if where.get("quantization_config") is not None:
                self.problems.append("quantization_config is set; only plain weights are read")
                break

    def _size(self, key: str) -> int:
        found = self.text.get(key)
        if isinstance(found, bool) or not isinstance(found, int) or found < 1:
            self.problems.append(f"{key} is {found!r}, not a positive integer")
            return 1
        return found

    def _number(
        self,
        where: Mapping[str, Any],
        key: str,
        fallback: Mapping[str, Any] | None = None,
        default: float | None = None,
    ) -> float:
        found = where.get(key, (fallback or {}).get(key, default))
        if isinstance(found, bool) or not isinstance(found, int | float) or not found > 0:
            self.problems.append(f"{key} is {found!r}, not a positive number")
            return 1.0
        return float(found)

    def _layer_types(self) -> tuple[LayerType, ...]:
        count = self._size("num_hidden_layers")
        listed = self.text.get("layer_types")
        if listed is None:
            every = self.text.get("full_attention_interval", 4)
            if not isinstance(every, int) or every < 1:
                self.problems.append(f"full_attention_interval is {every!r}")
                every = 4
            return tuple(LINEAR if (i + 1) % every else FULL for i in range(count))
        if not isinstance(listed, list):
            self.problems.append(f"layer_types is {listed!r}, not a list")
            return ()
        unknown = sorted({str(kind) for kind in listed if kind not in (LINEAR, FULL)})
        if unknown:
            self.problems.append(f"layer_types has unknown kinds {unknown}")
        if len(listed) != count:
            self.problems.append(f"layer_types has {len(listed)} for num_hidden_layers {count}")
        if not unknown and (LINEAR not in listed or FULL not in listed):
            self.problems.append(f"layer_types must hold both {LINEAR} and {FULL}")
        return tuple(listed)

    def _rope(self) -> Mapping[str, Any]:
        found = self.text.get("rope_parameters")
        if found is None:
            scaling = self.text.get("rope_scaling") or {}
            found = {"rope_theta": self.text.get("rope_theta"), **scaling}
        if not isinstance(found, dict):
            self.problems.append(f"rope_parameters is {found!r}, not an object")
            return {}
        kind = found.get("rope_type", found.get("type", "default"))
        if kind != "default":
            self.problems.append(f"rope_type is {kind!r}; only 'default' is supported")
        return found

    def _tied(self) -> bool:
        found = self.outer.get("tie_word_embeddings", self.text.get("tie_word_embeddings", False))
        if not isinstance(found, bool):
            self.problems.append(f"tie_word_embeddings is {found!r}, not true or false")
            return False
        return found

    def _divisible(self, sizes: Mapping[str, int]) -> None:
        for many, few in (("heads", "kv_heads"), ("linear_value_heads", "linear_key_heads")):
            if sizes[many] % sizes[few]:
                self.problems.append(
                    f"{_SIZES[many]} {sizes[many]} is no multiple of {_SIZES[few]} {sizes[few]}"
                )
        if sizes["conv_kernel"] < 2:
            self.problems.append("linear_conv_kernel_dim is 1; at least 2 is needed")

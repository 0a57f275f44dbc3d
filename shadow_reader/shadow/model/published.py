"""The published shapes by their names: ``random:tiny``, ``random:0.8B``, ... No torch here."""

from __future__ import annotations

from typing import Final

from shadow_reader.errors import ModelError
from shadow_reader.shadow.model.config import FULL, LINEAR, ModelConfig

PREFIX: Final = "random:"


def _published(
    hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, values: int
) -> ModelConfig:
    return ModelConfig(
        hidden=hidden,
        intermediate=intermediate,
        vocab=248_320,
        layer_types=(LINEAR, LINEAR, LINEAR, FULL) * (layers // 4),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=256,
        linear_key_heads=16,
        linear_value_heads=values,
        linear_key_dim=128,
        linear_value_dim=128,
        conv_kernel=4,
        rotary_dim=64,
        rope_theta=10_000_000.0,
        norm_eps=1e-6,
        context=262_144,
        tied=True,
    )


TINY = ModelConfig(
    hidden=64,
    intermediate=160,
    vocab=248_320,
    layer_types=(LINEAR, LINEAR, LINEAR, FULL) * 2,
    heads=4,
    kv_heads=2,
    head_dim=32,
    linear_key_heads=2,
    linear_value_heads=4,
    linear_key_dim=32,
    linear_value_dim=32,
    conv_kernel=4,
    rotary_dim=8,
    rope_theta=10_000_000.0,
    norm_eps=1e-6,
    context=262_144,
    tied=True,
)

SHAPES: dict[str, ModelConfig] = {
    "tiny": TINY,
    "0.8B": _published(1024, 3584, 24, 8, 2, 16),
    "2B": _published(2048, 6144, 24, 8, 2, 16),
    "4B": _published(2560, 9216, 32, 16, 4, 32),
}


def published_config(spec: str) -> ModelConfig:
    """The shape that ``spec`` names.

    Raises:
        ModelError: no such name.
    """
    size = spec.removeprefix(PREFIX)
    if size not in SHAPES:
        known = [PREFIX + name for name in SHAPES]
        raise ModelError(f"no random model {spec!r}; there are {known}", spec=spec, known=known)
    return SHAPES[size]

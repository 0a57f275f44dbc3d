"""Every tensor of the text model by name and shape; the one list that both sources must match.

Names are canonical: as in a text-only model folder, without any leading ``model.``.
"""

from __future__ import annotations

from shadow_reader.shadow.model.config import LINEAR, ModelConfig

EMBED = "embed_tokens.weight"
HEAD = "lm_head.weight"
FINAL_NORM = "norm.weight"

Shape = tuple[int, ...]


def tensor_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Canonical name to shape, in the order of the forward. ``lm_head`` only when untied."""
    shapes: dict[str, Shape] = {EMBED: (config.vocab, config.hidden)}
    for index, kind in enumerate(config.layer_types):
        prefix = layer_prefix(index)
        mixer = _linear_shapes(config) if kind == LINEAR else _full_shapes(config)
        for name, shape in {**mixer, **_block_shapes(config)}.items():
            shapes[prefix + name] = shape
    shapes[FINAL_NORM] = (config.hidden,)
    if not config.tied:
        shapes[HEAD] = (config.vocab, config.hidden)
    return shapes


def layer_prefix(index: int) -> str:
    """Start of the names of decoder layer ``index``."""
    return f"layers.{index}."


def _linear_shapes(config: ModelConfig) -> dict[str, Shape]:
    hidden, values = config.hidden, config.linear_value_heads
    return {
        "linear_attn.in_proj_qkv.weight": (config.conv_dim, hidden),
        "linear_attn.in_proj_z.weight": (config.value_width, hidden),
        "linear_attn.in_proj_b.weight": (values, hidden),
        "linear_attn.in_proj_a.weight": (values, hidden),
        "linear_attn.conv1d.weight": (config.conv_dim, 1, config.conv_kernel),
        "linear_attn.dt_bias": (values,),
        "linear_attn.A_log": (values,),
        "linear_attn.norm.weight": (config.linear_value_dim,),
        "linear_attn.out_proj.weight": (hidden, config.value_width),
    }


def _full_shapes(config: ModelConfig) -> dict[str, Shape]:
    hidden, dim = config.hidden, config.head_dim
    return {
        "self_attn.q_proj.weight": (config.heads * 2 * dim, hidden),
        "self_attn.k_proj.weight": (config.kv_heads * dim, hidden),
        "self_attn.v_proj.weight": (config.kv_heads * dim, hidden),
        "self_attn.q_norm.weight": (dim,),
        "self_attn.k_norm.weight": (dim,),
        "self_attn.o_proj.weight": (hidden, config.heads * dim),
    }


def _block_shapes(config: ModelConfig) -> dict[str, Shape]:
    hidden, wide = config.hidden, config.intermediate
    return {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (wide, hidden),
        "mlp.up_proj.weight": (wide, hidden),
        "mlp.down_proj.weight": (hidden, wide),
    }

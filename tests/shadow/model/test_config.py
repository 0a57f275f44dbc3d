"""Reading config.json: the published shapes, and every setting that is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shadow_reader.errors import ModelError
from shadow_reader.shadow.model.config import ModelConfig
from shadow_reader.shadow.model.published import SHAPES

TEXT: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "attention_bias": False,
    "attn_output_gate": True,
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 6,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262144,
    "num_attention_heads": 8,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "vocab_size": 248320,
    "rope_parameters": {
        "mrope_interleaved": True,
        "mrope_section": [11, 11, 10],
        "partial_rotary_factor": 0.25,
        "rope_theta": 10000000,
        "rope_type": "default",
    },
}


def write(folder: Path, loaded: object) -> Path:
    (folder / "config.json").write_text(json.dumps(loaded))
    return folder


def test_published_layouts_give_the_published_shape(tmp_path: Path) -> None:
    outer = {"model_type": "qwen3_5", "text_config": TEXT, "tie_word_embeddings": True}
    assert ModelConfig.from_folder(write(tmp_path, outer)) == SHAPES["0.8B"]
    assert ModelConfig.from_folder(write(tmp_path, TEXT)) == SHAPES["0.8B"]


def test_derived_sizes_of_the_published_shape() -> None:
    config = SHAPES["0.8B"]
    assert config.row_bytes(2) == 12_288
    assert config.state_bytes(2) == 18 * (16 * 128 * 128 * 4 + 6144 * 3 * 2)
    assert (config.full_layers, config.linear_layers, config.conv_dim) == (6, 18, 6144)
    assert SHAPES["4B"].linear_value_heads == 2 * SHAPES["4B"].linear_key_heads


def test_layer_types_from_the_interval() -> None:
    text = {key: value for key, value in TEXT.items() if key != "layer_types"}
    assert ModelConfig.from_json(text) == SHAPES["0.8B"]


def test_the_outer_tie_wins() -> None:
    outer = {"model_type": "qwen3_5", "text_config": TEXT, "tie_word_embeddings": False}
    assert not ModelConfig.from_json(outer).tied


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model_type": "qwen3_5_moe_text"}, "model_type is 'qwen3_5_moe_text'"),
        ({"model_type": "llama"}, "model_type is 'llama'"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"attn_output_gate": False}, "attn_output_gate is False"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config is set"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e7}}, "rope_type is 'yarn'"),
        ({"rope_parameters": {"rope_type": "default"}}, "rope_theta is None"),
        ({"rope_parameters": None, "rope_theta": None}, "rope_theta is None"),
        ({"rope_parameters": 7}, "rope_parameters is 7"),
        ({"layer_types": ["sliding_attention"] * 24}, "unknown kinds ['sliding_attention']"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "2 for num_hidden_layers 24"),
        ({"layer_types": ["full_attention"] * 24}, "must hold both"),
        ({"layer_types": "all"}, "layer_types is 'all'"),
        ({"layer_types": None, "full_attention_interval": 0}, "full_attention_interval is 0"),
        ({"hidden_size": None}, "hidden_size is None"),
        ({"vocab_size": 1.5}, "vocab_size is 1.5"),
        ({"head_dim": True}, "head_dim is True"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0"),
        ({"num_key_value_heads": 3}, "num_attention_heads 8 is no multiple"),
        ({"linear_num_key_heads": 5}, "linear_num_value_heads 16 is no multiple"),
        ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim is 1"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'"),
        ({"rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 1.5}}, "no even size"),
    ],
)
def test_what_cannot_be_computed_is_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ModelError) as caught:
        ModelConfig.from_json(TEXT | changes)
    assert told in caught.value.message


def test_all_problems_come_in_one_error() -> None:
    with pytest.raises(ModelError) as caught:
        ModelConfig.from_json(TEXT | {"attention_bias": True, "hidden_act": "gelu", "head_dim": 0})
    assert len(caught.value.details["problems"]) >= 3


@pytest.mark.parametrize("text", [b"{", b"[]", b"\xff\xfe", b'{"text_config": 3}'])
def test_a_broken_config_is_a_model_error(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(ModelError):
        ModelConfig.from_folder(tmp_path)


def test_no_folder_and_no_config(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no model folder"):
        ModelConfig.from_folder(tmp_path / "absent")
    with pytest.raises(ModelError, match=r"holds no config\.json"):
        ModelConfig.from_folder(tmp_path)

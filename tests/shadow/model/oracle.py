"""transformers' Qwen3.5 as the oracle: small random models, saved as transformers saves them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import DynamicCache, Qwen3_5ForCausalLM, Qwen3_5ForConditionalGeneration
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5Config, Qwen3_5TextConfig

from shadow_reader.shadow.model import qwen35
from shadow_reader.shadow.model.parameters import LayerParameters
from shadow_reader.shadow.model.qwen35 import Qwen35, RecurrentState

VOCAB = 199


def text_settings(**changes: Any) -> dict[str, Any]:
    """A small text model with every feature: grouped heads, partial rotary, 2 values a key."""
    settings: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 24,
        "linear_conv_kernel_dim": 4,
        "max_position_embeddings": 4096,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000_000,
            "partial_rotary_factor": 0.25,
            "mrope_section": [2, 1, 1],
            "mrope_interleaved": True,
        },
        "tie_word_embeddings": True,
    }
    return settings | changes


_VISION = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "patch_size": 4,
    "out_hidden_size": 48,
    "num_position_embeddings": 16,
}


def text_oracle(seed: int = 0, **changes: Any) -> Any:
    """``Qwen3_5ForCausalLM`` with every parameter random."""
    torch.manual_seed(seed)
    return _shaken(Qwen3_5ForCausalLM(Qwen3_5TextConfig(**text_settings(**changes))))


def multimodal_oracle(seed: int = 0, **changes: Any) -> Any:
    """``Qwen3_5ForConditionalGeneration`` with a one-layer vision tower."""
    torch.manual_seed(seed)
    text = text_settings(**changes)
    config = Qwen3_5Config(
        text_config=text,
        vision_config=_VISION,
        tie_word_embeddings=text["tie_word_embeddings"],
    )
    return _shaken(Qwen3_5ForConditionalGeneration(config))


def _shaken(model: Any) -> Any:
    """No parameter keeps its initial constant, or a forgotten norm would not be seen."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("A_log"):
                parameter.uniform_(-4, 2)
            elif name.endswith("dt_bias"):
                parameter.uniform_(-4, 1)
            elif parameter.ndim == 1:
                parameter.add_(torch.empty_like(parameter).uniform_(-0.3, 0.3))
            else:
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
                if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
                    parameter.mul_(0.5)  # a deep random net would blow every rounding up
    return model.eval()


def add_draft_head(folder: Path) -> None:
    """Published folders hold ``mtp.`` tensors, which transformers does not save."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["mtp.fc.weight"] = torch.ones(48, 96)
    save_file(tensors, file, metadata={"format": "pt"})


@dataclass(frozen=True, slots=True)
class Reading:
    """What either side says about the same ids."""

    layers: torch.Tensor  # [layers, n, hidden]: output of each decoder layer
    logits: torch.Tensor  # [n, vocab]
    rows: torch.Tensor  # [full_layers, 2, kv_heads, n, head_dim]
    recurrent: torch.Tensor
    conv: torch.Tensor


def read_hf(model: Any, ids: torch.Tensor, cuts: Sequence[int]) -> Reading:
    """Read ``ids`` with transformers, in parts of ``cuts`` ids, into one cache."""
    text = model.model.language_model if hasattr(model.model, "language_model") else model.model
    cache = DynamicCache(config=text.config)
    name = cache_argument(model)
    seen: list[list[torch.Tensor]] = [[] for _ in text.layers]
    hooks = [
        layer.register_forward_hook(lambda _m, _a, out, seen=seen[i]: seen.append(out[0]))
        for i, layer in enumerate(text.layers)
    ]
    logits = []
    with torch.inference_mode():
        for part in torch.split(ids, list(cuts)):
            logits.append(model(input_ids=part[None], use_cache=True, **{name: cache}).logits[0])
    for hook in hooks:
        hook.remove()
    kinds = text.config.layer_types
    full = [cache.layers[i] for i, kind in enumerate(kinds) if kind == "full_attention"]
    linear = [cache.layers[i] for i, kind in enumerate(kinds) if kind == "linear_attention"]
    return Reading(
        layers=torch.stack([torch.cat(parts) for parts in seen]),
        logits=torch.cat(logits).float(),
        rows=torch.stack([torch.stack((each.keys[0], each.values[0])) for each in full]),
        recurrent=torch.stack([each.recurrent_states[0][0] for each in linear]),
        conv=torch.stack([each.conv_states[0][0] for each in linear]),
    )


def cache_argument(model: Any) -> str:
    """The name transformers gives its cache argument; it changed between releases."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


class Recorder:
    """Keeps the output of each decoder layer of our forward.

    With ``inputs`` ([layers, n, hidden]) each layer reads the oracle's input instead of the
    layer before it, so that a difference shows in its own layer alone.
    """

    def __init__(self, monkeypatch: Any) -> None:
        self.outputs: list[torch.Tensor] = []
        self.inputs: torch.Tensor | None = None
        plain = qwen35._Call.layer

        def layer(call: Any, parameters: LayerParameters, x: torch.Tensor) -> torch.Tensor:
            if self.inputs is not None and self.outputs:
                x = self.inputs[len(self.outputs)]
            out = plain(call, parameters, x)
            self.outputs.append(out)
            return out

        monkeypatch.setattr(qwen35._Call, "layer", layer)


def read_ours(model: Qwen35, ids: torch.Tensor, cuts: Sequence[int], recorder: Recorder) -> Reading:
    """Read ``ids`` with this reader, in parts of ``cuts`` ids; each part's rows are a page."""
    pages: list[torch.Tensor] = []
    state: RecurrentState = model.empty_state()
    position, logits, layers = 0, [], []
    for part in torch.split(ids, list(cuts)):
        recorder.outputs.clear()
        step = model.forward(part, position=position, past=pages, state=state)
        pages, state, position = [*pages, step.rows], step.state, position + len(part)
        logits.append(model.logits(step.hidden))
        layers.append(torch.stack(recorder.outputs))
    return Reading(
        layers=torch.cat(layers, dim=1),
        logits=torch.cat(logits),
        rows=torch.cat(pages, dim=3),
        recurrent=state.recurrent,
        conv=state.conv,
    )


def assert_same(ours: Reading, hf: Reading, *, within: float) -> None:
    """Root mean square of the difference, relative to the oracle's, layers first and by name."""
    width = ours.conv.shape[-1]
    pairs = [
        *((f"layer {i}", *pair) for i, pair in enumerate(zip(ours.layers, hf.layers, strict=True))),
        ("logits", ours.logits, hf.logits),
        ("rows", ours.rows, hf.rows),
        ("recurrent", ours.recurrent, hf.recurrent),
        ("conv", ours.conv, hf.conv[..., -width:]),
    ]
    for name, mine, theirs in pairs:
        assert mine.shape == theirs.shape, name
        found = distance(mine, theirs)
        assert found < within, f"{name} differs by {found:.1e}"


def distance(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    """Root mean square of the difference over that of ``theirs``; NaN counts as infinite."""
    wanted = theirs.double()
    size = wanted.square().mean().sqrt().clamp(min=1e-30)
    off = (mine.double() - wanted).square().mean().sqrt() / size
    return float(off.nan_to_num(nan=float("inf")))

"""A small model of this reader's own, without transformers: every feature, quick to make."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from shadow_reader.shadow.model.config import ModelConfig
from shadow_reader.shadow.model.names import tensor_shapes
from shadow_reader.shadow.model.parameters import ParameterBuilder
from shadow_reader.shadow.model.qwen35 import Qwen35, RecurrentState, Step
from shadow_reader.shadow.model.random_weights import random_tensor

CONFIG = ModelConfig(
    hidden=32,
    intermediate=48,
    vocab=101,
    layer_types=("linear_attention", "full_attention", "linear_attention", "full_attention"),
    heads=4,
    kv_heads=2,
    head_dim=16,
    linear_key_heads=2,
    linear_value_heads=4,
    linear_key_dim=16,
    linear_value_dim=24,
    conv_kernel=4,
    rotary_dim=4,
    rope_theta=10_000.0,
    norm_eps=1e-6,
    context=4096,
    tied=True,
)


def small_model(config: ModelConfig = CONFIG, dtype: torch.dtype = torch.float32) -> Qwen35:
    """The model of ``config`` with seeded random weights, on the CPU."""
    shapes = tensor_shapes(config)
    device = torch.device("cpu")
    with ThreadPoolExecutor(1) as pool:

        def read(name: str) -> torch.Tensor:
            shape = shapes[name]
            return random_tensor(name, shape, seed="small", layers=config.layers, pool=pool)

        parameters = ParameterBuilder(config, read, device=device, dtype=dtype).build()
    return Qwen35(
        config=config,
        parameters=parameters,
        device=device,
        dtype=dtype,
        name="small",
        weights_hash="",
    )


def some_ids(n: int, seed: int = 0) -> torch.Tensor:
    """[n] int64 ids of the small model's vocabulary."""
    return torch.randint(0, CONFIG.vocab, (n,), generator=torch.Generator().manual_seed(seed))


def read_in_parts(
    model: Qwen35, ids: torch.Tensor, cuts: Sequence[int]
) -> tuple[list[torch.Tensor], RecurrentState, list[Step]]:
    """Read ``ids`` from the empty state, a page a part: pages, last state, every step."""
    pages: list[torch.Tensor] = []
    state, steps, position = model.empty_state(), [], 0
    for part in torch.split(ids, list(cuts)):
        step = model.forward(part, position=position, past=pages, state=state)
        steps.append(step)
        pages, state, position = [*pages, step.rows], step.state, position + len(part)
    return pages, state, steps


def bits(*tensors: torch.Tensor) -> list[bytes]:
    """The bytes of tensors, to compare bit for bit (NaN equals itself)."""
    return [t.contiguous().view(torch.uint8).numpy().tobytes() for t in tensors]


def step_bits(step: Step) -> list[bytes]:
    """Every byte a forward gave."""
    return bits(step.hidden, step.rows, step.state.recurrent, step.state.conv)

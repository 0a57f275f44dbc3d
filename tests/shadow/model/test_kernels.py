"""Where the fused kernels read, and that the engine's identity tells them from plain torch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from shadow_reader.shadow.model import kernels
from shadow_reader.shadow.model.config import ModelConfig
from shadow_reader.shadow.model.published import SHAPES
from tests.shadow.models import SMALL

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(kernels, "triton_version", lambda: "3.6.0")
    return monkeypatch


@pytest.mark.parametrize("config", SHAPES.values(), ids=SHAPES)
def test_every_published_shape_is_read_by_the_kernels(
    config: ModelConfig, installed: pytest.MonkeyPatch
) -> None:
    assert kernels.fused(config, CUDA, torch.bfloat16)
    assert kernels.arithmetic(config, CUDA, torch.bfloat16) == "triton 3.6.0"


@pytest.mark.parametrize("found", [None, "3.5.1", "3.60.0", "3.7.0", "unknown"])
def test_a_triton_that_was_not_checked_leaves_it_to_torch(
    found: str | None, installed: pytest.MonkeyPatch
) -> None:
    installed.setattr(kernels, "triton_version", lambda: found)
    assert kernels.arithmetic(SHAPES["0.8B"], CUDA, torch.bfloat16) == "plain"


def test_other_devices_dtypes_and_shapes_are_left_to_torch(installed: pytest.MonkeyPatch) -> None:
    config = SHAPES["0.8B"]
    assert not kernels.fused(config, CPU, torch.bfloat16)
    assert not kernels.fused(config, CUDA, torch.float32)
    assert not kernels.fused(SMALL, CUDA, torch.bfloat16)
    for other in (
        replace(config, head_dim=96),
        replace(config, linear_key_dim=64),
        replace(config, linear_value_dim=64),
    ):
        assert not kernels.fused(other, CUDA, torch.bfloat16)

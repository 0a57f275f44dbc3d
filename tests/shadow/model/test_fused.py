"""The fused kernels against their plain twins, in Triton's interpreter and in float32."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tests.shadow.model.interpreter  # noqa: F401  # before any kernel
from shadow_reader.shadow.model import (
    fused_attention,
    fused_delta,
    fused_rows,
)
from shadow_reader.shadow.model.config import FULL, LINEAR
from shadow_reader.shadow.model.fused_graphs import ChunkGraphs
from shadow_reader.shadow.model.fused_rows import gated_norm, norm_rows, silu_mul
from shadow_reader.shadow.model.layers import rms_norm
from shadow_reader.shadow.model.qwen35 import RecurrentState, Step
from tests.shadow.model.oracle import distance
from tests.shadow.models import SMALL, Watched, small_model

ONE_OF_EACH = replace(SMALL, layer_types=(LINEAR, FULL), heads=2, kv_heads=1)
IDS = torch.randint(0, SMALL.vocab, (600,), generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter takes long for a program, not for a large one."""
    monkeypatch.setattr(fused_attention, "_PROGRAMS", 4)
    monkeypatch.setattr(fused_attention, "_TOKENS", 128)
    monkeypatch.setattr(fused_delta, "_TOKENS", 128)
    monkeypatch.setattr(fused_rows, "_NORM_ROWS", 16)


def kernels(model: Watched) -> ChunkGraphs:
    return ChunkGraphs(
        model.config,
        model._parameters,
        model._rotary,
        device=model.device,
        dtype=model.dtype,
        graphs=False,
    )


class Reader:
    """Reads on in one of the two ways, each in its own rows and state."""

    def __init__(self, model: Watched, graphs: ChunkGraphs | None) -> None:
        self.model = model
        self.graphs = graphs
        self.pages: list[torch.Tensor] = []
        self.state = model.empty_state()
        self.position = 0

    def read(self, n: int) -> Step:
        ids = IDS[self.position : self.position + n].to(self.model.device)
        if self.graphs is None:
            step = self.model.forward(
                ids, position=self.position, past=self.pages, state=self.state
            )
        else:
            hidden, rows, recurrent, conv = self.graphs.read(
                ids,
                position=self.position,
                past=self.pages,
                recurrent=self.state.recurrent,
                conv=self.state.conv,
            )
            step = Step(hidden, rows, RecurrentState(recurrent, conv))
        self.pages.append(step.rows)
        self.state, self.position = step.state, self.position + n
        return step


@pytest.mark.parametrize("cuts", [[64, 2, 70], [129]])
def test_the_forward_equals_plain_torch(cuts: list[int]) -> None:
    """Pages, a short last one, padding, fewer ids than the convolution reaches back."""
    model = small_model(config=ONE_OF_EACH)
    plain, fused = Reader(model, None), Reader(model, kernels(model))
    for n in cuts:
        wanted, found = plain.read(n), fused.read(n)
        assert found.hidden.shape == wanted.hidden.shape
        assert distance(found.hidden, wanted.hidden) < 5e-6
        assert distance(found.rows, wanted.rows) < 5e-6
        assert distance(found.state.recurrent, wanted.state.recurrent) < 5e-6
        assert distance(found.state.conv, wanted.state.conv) < 5e-6


def test_watching_shows_what_plain_torch_shows() -> None:
    model = small_model(config=ONE_OF_EACH)
    state = model.empty_state()
    seen: list[list[torch.Tensor]] = [[], []]
    model.forward(
        IDS[:70], position=0, past=[], state=state, watch=lambda _, x: seen[0].append(x.clone())
    )
    kernels(model).read(
        IDS[:70],
        position=0,
        past=[],
        recurrent=state.recurrent,
        conv=state.conv,
        watch=lambda _, x: seen[1].append(x.clone()),
    )
    assert len(seen[0]) == len(seen[1]) == model.config.layers
    for wanted, found in zip(*seen, strict=True):
        assert found.shape == wanted.shape
        assert distance(found, wanted) < 5e-6


def test_norms_and_gates_equal_plain_torch() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(32, 24, generator=generator)
    weight = torch.randn(24, generator=generator)
    out = torch.full_like(x, torch.nan)
    norm_rows(x=x, weight=weight, eps=1e-6, out=out)
    torch.testing.assert_close(out, rms_norm(x, weight, 1e-6))
    heads, z = x.view(16, 2, 24), torch.randn(16, 60, generator=generator)
    gated = torch.full((16, 48), torch.nan)
    gated_norm(x=heads, z=z[:, 5:53], weight=weight, eps=1e-6, out=gated)
    silu = torch.nn.functional.silu(z[:, 5:53])
    torch.testing.assert_close(gated, rms_norm(heads, weight, 1e-6).reshape(16, 48) * silu)
    thin = torch.full((16, 30), torch.nan)
    silu_mul(wide=z, out=thin)
    torch.testing.assert_close(thin, torch.nn.functional.silu(z[:, :30]) * z[:, 30:])

"""Models for the tests of states and engines: a small real one, and a fake that only mixes bits.

``Watched`` is the real forward, with its calls on record and a place to make it fail. ``Fake``
costs nothing, depends on everything it is given (ids, position, every page, the whole state) and
refuses NaN, so that a wrong page or state shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from hashlib import blake2b
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import torch

from shadow_reader.shadow.model import qwen35
from shadow_reader.shadow.model.config import FULL, LINEAR, ModelConfig
from shadow_reader.shadow.model.names import tensor_shapes
from shadow_reader.shadow.model.parameters import ParameterBuilder, Parameters
from shadow_reader.shadow.model.qwen35 import Qwen35, RecurrentState, Step, Watch
from shadow_reader.shadow.model.random_weights import random_tensor

SMALL: Final = ModelConfig(
    hidden=32,
    intermediate=48,
    vocab=256,
    layer_types=(LINEAR, FULL, LINEAR, LINEAR, FULL),
    heads=4,
    kv_heads=2,
    head_dim=16,
    linear_key_heads=2,
    linear_value_heads=4,
    linear_key_dim=16,
    linear_value_dim=16,
    conv_kernel=4,
    rotary_dim=8,
    rope_theta=10_000_000.0,
    norm_eps=1e-6,
    context=65_536,
    tied=True,
)

MINIMAL: Final = ModelConfig(
    hidden=4,
    intermediate=4,
    vocab=65_536,
    layer_types=(LINEAR, FULL),
    heads=1,
    kv_heads=1,
    head_dim=4,
    linear_key_heads=1,
    linear_value_heads=4,
    linear_key_dim=8,
    linear_value_dim=8,
    conv_kernel=4,
    rotary_dim=2,
    rope_theta=10_000.0,
    norm_eps=1e-6,
    context=262_144,
    tied=True,
)

Trip = Callable[[str], None]


def _no_trip(stage: str) -> None:
    """Fail nowhere."""


class Watched(Qwen35):
    """A real model; ``calls`` are (position, ids) of each forward, ``trip`` may raise."""

    calls: list[tuple[int, int]]
    trip: Trip

    def forward(
        self,
        ids: torch.Tensor,
        *,
        position: int,
        past: Sequence[torch.Tensor],
        state: RecurrentState,
        watch: Watch | None = None,
    ) -> Step:
        self.calls.append((position, len(ids)))
        self.trip("forward")
        step = super().forward(ids, position=position, past=past, state=state, watch=watch)
        self.trip("forwarded")
        return step

    def logits(self, hidden: torch.Tensor, ids: torch.Tensor | None = None) -> torch.Tensor:
        self.trip("logits")
        return super().logits(hidden, ids)


class Fake(Watched):
    """Bits of everything it is given, mixed; see the module."""

    def __init__(self, config: ModelConfig = MINIMAL) -> None:
        self.config = config
        self.device = torch.device("cpu")
        self.dtype = torch.float32
        self.name = "fake"
        self.weights_hash = "fake"
        self.calls = []
        self.trip = _no_trip

    @property
    def weight_bytes(self) -> int:
        return 0

    def forward(
        self,
        ids: torch.Tensor,
        *,
        position: int,
        past: Sequence[torch.Tensor],
        state: RecurrentState,
        watch: Watch | None = None,
    ) -> Step:
        self.calls.append((position, len(ids)))
        self.trip("forward")
        assert sum(page.shape[3] for page in past) == position
        mixed = blake2b(f"{position}".encode(), digest_size=16)
        for tensor in (ids, state.recurrent, state.conv, *(page[..., -1, :] for page in past)):
            assert not bool(torch.isnan(tensor).any()), "NaN was read"
            mixed.update(tensor.contiguous().numpy().tobytes())
        random = np.random.Generator(np.random.PCG64(int.from_bytes(mixed.digest(), "little")))
        self.trip("forwarded")

        def made(*shape: int) -> torch.Tensor:
            return torch.from_numpy(random.standard_normal(shape, dtype=np.float32))

        c, n = self.config, len(ids)
        hidden = made(n, c.hidden)
        if watch is not None:
            for layer in range(c.layers):
                watch(layer, hidden * (layer + 1))
        return Step(
            hidden,
            made(c.full_layers, 2, c.kv_heads, n, c.head_dim),
            RecurrentState(made(*state.recurrent.shape), made(*state.conv.shape)),
        )

    def empty_state(self) -> RecurrentState:
        c = self.config
        heads = c.linear_value_heads, c.linear_key_dim, c.linear_value_dim
        return RecurrentState(
            torch.zeros(c.linear_layers, *heads),
            torch.zeros(c.linear_layers, c.conv_dim, c.conv_kernel - 1),
        )

    def logits(self, hidden: torch.Tensor, ids: torch.Tensor | None = None) -> torch.Tensor:
        self.trip("logits")
        if ids is None:  # the whole head: one text id is the likeliest, another one each time
            found = torch.zeros(len(hidden), self.config.vocab)
            found[:, int(abs(float(hidden.sum())) * 1e6) % 95 + 32] = 1.0
            return found
        return hidden.sum() * torch.linspace(-1, 1, len(ids)).expand(len(hidden), -1)


@cache
def _parameters(config: ModelConfig, dtype: torch.dtype, device: str) -> Parameters:
    with torch.inference_mode(False), ThreadPoolExecutor(1) as pool:
        shapes = tensor_shapes(config)

        def read(name: str) -> torch.Tensor:
            return random_tensor(name, shapes[name], seed="state", layers=config.layers, pool=pool)

        return ParameterBuilder(config, read, device=torch.device(device), dtype=dtype).build()


def small_model(
    *, dtype: torch.dtype = torch.float32, device: str = "cpu", config: ModelConfig = SMALL
) -> Watched:
    """The small real model; the weights are the same in every process."""
    model = Watched(
        config=config,
        parameters=_parameters(config, dtype, device),
        device=torch.device(device),
        dtype=dtype,
        name="small",
        weights_hash="small",
    )
    model.calls = []
    model.trip = _no_trip
    return model


@contextmanager
def tripping(model: Watched, stage: str, error: BaseException) -> Iterator[None]:
    """Let ``model`` raise ``error`` at ``stage``.

    Stages: forward, forwarded, logits; for real models also delta:N and attention:N, before the
    Nth mixer of that kind in a forward.
    """
    kind, _, number = stage.partition(":")
    if number:
        name = {"delta": "gated_delta", "attention": "attention"}[kind]
        with patch.object(qwen35, name, _nth(getattr(qwen35, name), int(number), error)):
            yield
        return

    def trip(reached: str) -> None:
        if reached == stage:
            raise error

    with patch.object(model, "trip", trip):
        yield


def _nth(real: Callable[..., Any], number: int, error: BaseException) -> Callable[..., Any]:
    seen = 0

    def call(**arguments: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == number + 1:
            raise error
        return real(**arguments)

    return call

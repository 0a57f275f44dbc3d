"""The random models: the same bytes everywhere, activations of a sane size."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from shadow_reader.errors import ModelError
from shadow_reader.shadow.model.load import load_model
from shadow_reader.shadow.model.names import tensor_shapes
from shadow_reader.shadow.model.published import SHAPES
from shadow_reader.shadow.model.qwen35 import Qwen35, RecurrentState
from shadow_reader.shadow.model.random_weights import RandomWeights, random_tensor

TINY_HASH = "067b999a753afa62609b230cb9d5adf05f709ac4ea057db6dd6d3fde9ef46d47"
"""Changes only with the generation of the weights; a snapshot of the old ones is then refused."""


@pytest.fixture(scope="module")
def tiny() -> Qwen35:
    return load_model("random:tiny", device="cpu")


def test_same_hash_here_and_in_another_process(tiny: Qwen35) -> None:
    code = (
        "from shadow_reader.shadow.model.load import load_model;"
        "print(load_model('random:tiny', device='cpu').weights_hash)"
    )
    root = Path(__file__).parents[3]
    run = [sys.executable, "-c", code]
    there = subprocess.run(run, cwd=root, capture_output=True, text=True, check=True, timeout=100)
    assert there.stdout.strip() == tiny.weights_hash == TINY_HASH


def test_order_and_threads_do_not_matter() -> None:
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(4) as four:
        first, second = RandomWeights("random:tiny", one), RandomWeights("random:tiny", four)
        names = list(tensor_shapes(first.config))
        forward = {name: first.read(name) for name in names[1:]}
        backward = {name: second.read(name) for name in reversed(names[1:])}
        assert all(torch.equal(forward[name], backward[name]) for name in names[1:])
        assert torch.equal(first.read(names[0]), second.read(names[0]))


def test_blocks_do_not_repeat() -> None:
    with ThreadPoolExecutor(2) as pool:
        long = random_tensor("long.weight", (3 << 22,), seed="s", layers=1, pool=pool)
    first, second, third = long.chunk(3)
    assert not torch.equal(first, second)
    assert not torch.equal(second, third)
    assert abs(float(long.mean())) < 1e-5


def test_tiny_has_every_feature_and_the_real_vocabulary() -> None:
    config = SHAPES["tiny"]
    assert config.vocab == 248_320
    assert config.context == 262_144
    assert config.tied
    assert config.group > 1
    assert config.linear_value_heads > config.linear_key_heads
    assert 0 < config.rotary_dim < config.head_dim
    assert (config.full_layers, config.linear_layers) == (2, 6)


def test_activations_stay_sane_over_many_ids(tiny: Qwen35) -> None:
    generator = torch.Generator().manual_seed(1)
    pages: list[torch.Tensor] = []
    state: RecurrentState = tiny.empty_state()
    for chunk in range(6):
        ids = torch.randint(0, 248_077, (512,), generator=generator)
        step = tiny.forward(ids, position=chunk * 512, past=pages, state=state)
        pages, state = [*pages, step.rows], step.state
        assert 0.3 < float(step.hidden.std()) < 3
        assert float(state.recurrent.abs().max()) < 50
    logits = tiny.logits(step.hidden[-1:])
    assert 0.5 < float(logits.std()) < 5


def test_unknown_names_are_refused() -> None:
    for spec in ("random:", "random:27B", "random:Tiny"):
        with pytest.raises(ModelError, match="random:tiny"):
            load_model(spec, device="cpu")

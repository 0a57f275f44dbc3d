"""The chunked gated delta rule against its token-by-token twin in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shadow_reader.shadow.model.delta import gated_delta, invert_unit_lower, naive_gated_delta
from tests.shadow.model.oracle import distance


def inputs(
    n: int, keys: int, group: int, key_dim: int, value_dim: int, decay: float, seed: int
) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    values = keys * group
    return {
        "q": normal(n, keys, key_dim),
        "k": normal(n, keys, key_dim),
        "v": normal(n, values, value_dim),
        "g": -torch.rand(n, values, generator=generator) * decay,
        "beta": torch.rand(n, values, generator=generator),
        "state": normal(values, key_dim, value_dim),
    }


def exact(given_: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    return naive_gated_delta(**{name: tensor.double() for name, tensor in given_.items()})


@given(
    n=st.integers(1, 150),
    keys=st.integers(1, 3),
    group=st.integers(1, 3),
    key_dim=st.sampled_from([4, 16, 20, 64]),
    value_dim=st.sampled_from([4, 16, 24]),
    decay=st.sampled_from([0.0, 1e-3, 0.3, 5.0, 60.0]),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=60, deadline=None)
def test_chunks_equal_the_recurrence(
    n: int, keys: int, group: int, key_dim: int, value_dim: int, decay: float, seed: int
) -> None:
    given_ = inputs(n, keys, group, key_dim, value_dim, decay, seed)
    before = {name: tensor.clone() for name, tensor in given_.items()}
    out, state = gated_delta(**given_)
    wanted_out, wanted_state = exact(given_)
    assert distance(out, wanted_out) < 5e-5
    assert distance(state, wanted_state) < 5e-5
    assert all(torch.equal(given_[name], before[name]) for name in given_)


@pytest.mark.parametrize("lowest", [-1e3, -1e30, float("-inf")])
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_extreme_gates_stay_finite_and_right(lowest: float, beta: float) -> None:
    given_ = inputs(130, 2, 2, 16, 16, 0.5, seed=3)
    given_["g"][::7] = lowest
    given_["g"][1::7] = 0.0
    given_["beta"].fill_(beta)
    out, state = gated_delta(**given_)
    wanted_out, wanted_state = exact(given_)
    assert out.isfinite().all()
    assert state.isfinite().all()
    assert distance(out, wanted_out) < 2e-6
    assert distance(state, wanted_state) < 2e-6


def test_a_long_decay_does_not_blur_its_neighbours() -> None:
    given_ = inputs(64, 1, 1, 16, 16, 0.0, seed=4)
    given_["g"][0] = -150.0
    given_["g"][1:] = -1e-3
    out, state = gated_delta(**given_)
    wanted_out, wanted_state = exact(given_)
    assert distance(out, wanted_out) < 2e-6
    assert distance(state, wanted_state) < 2e-6


def test_the_same_key_again_and_again() -> None:
    given_ = inputs(128, 1, 2, 16, 16, 0.0, seed=5)
    given_["k"][:] = given_["k"][0]
    given_["beta"].fill_(0.97)
    out, state = gated_delta(**given_)
    wanted_out, wanted_state = exact(given_)
    assert distance(out, wanted_out) < 2e-5
    assert distance(state, wanted_state) < 2e-5


def test_zero_keys_and_queries() -> None:
    given_ = inputs(40, 1, 1, 8, 8, 0.1, seed=6)
    given_["k"].zero_()
    given_["q"].zero_()
    out, state = gated_delta(**given_)
    assert not out.any()
    assert distance(state, exact(given_)[1]) < 1e-6


@pytest.mark.parametrize(("n", "padded"), [(5, 8), (31, 32), (33, 64), (63, 64), (65, 96)])
def test_padding_touches_nothing(n: int, padded: int) -> None:
    """Tokens of zeros, given explicitly up to the chunk's end, change no bit of out or state."""
    given_ = inputs(n, 1, 2, 8, 8, 0.3, seed=n)
    out, state = gated_delta(**given_)
    assert out.shape == (n, 2, 8)
    longer = {
        name: tensor
        if name == "state"
        else torch.cat((tensor, tensor.new_zeros(padded - n, *rest)))
        for name, tensor in given_.items()
        for rest in [tensor.shape[1:]]
    }
    padded_out, padded_state = gated_delta(**longer)
    assert torch.equal(padded_out[:n], out)
    assert torch.equal(padded_state, state)
    assert distance(state, exact(given_)[1]) < 2e-6


@pytest.mark.parametrize("size", [8, 16, 32, 64])
def test_inverse_of_unit_lower(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    system = torch.randn(5, size, size, generator=generator).mul_(0.3)
    system[0, 1, 2] = float("inf")  # above the diagonal nothing is read
    kept = system.clone()
    inverse = invert_unit_lower(system)
    lower = kept.tril(-1).double() + torch.eye(size)
    assert distance(inverse, torch.linalg.inv(lower)) < 1e-5
    assert torch.equal(inverse, inverse.tril())
    assert torch.equal(system, kept)

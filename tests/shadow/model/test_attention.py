"""Attention in two parts against one masked softmax in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shadow_reader.shadow.model import attention as module
from shadow_reader.shadow.model.attention import attention, naive_attention
from tests.shadow.model.oracle import distance


def inputs(
    n: int, rows: int, kv_heads: int, group: int, dim: int, *, scale: float = 1.0, seed: int = 0
) -> dict[str, torch.Tensor | None]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * scale

    return {
        "q": normal(kv_heads * group, n, dim),
        "k": normal(kv_heads, n, dim),
        "v": normal(kv_heads, n, dim),
        "past": normal(2, kv_heads, rows, dim) if rows else None,
    }


def to(
    given_: dict[str, torch.Tensor | None], dtype: torch.dtype
) -> dict[str, torch.Tensor | None]:
    return {name: tensor if tensor is None else tensor.to(dtype) for name, tensor in given_.items()}


def both(given_: dict[str, torch.Tensor | None]) -> tuple[torch.Tensor, torch.Tensor]:
    exact = to(given_, torch.float64)
    q, k, v = given_["q"], given_["k"], given_["v"]
    assert q is not None
    assert k is not None
    assert v is not None
    eq, ek, ev = exact["q"], exact["k"], exact["v"]
    assert eq is not None
    assert ek is not None
    assert ev is not None
    return (
        attention(q=q, k=k, v=v, past=given_["past"]),
        naive_attention(q=eq, k=ek, v=ev, past=exact["past"]),
    )


@given(
    n=st.integers(1, 90),
    rows=st.integers(0, 300),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 4),
    dim=st.sampled_from([8, 16, 40]),
    scale=st.sampled_from([0.1, 1.0, 6.0]),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=50, deadline=None)
def test_two_parts_equal_one_softmax(
    n: int, rows: int, kv_heads: int, group: int, dim: int, scale: float, seed: int
) -> None:
    given_ = inputs(n, rows, kv_heads, group, dim, scale=scale, seed=seed)
    mine, wanted = both(given_)
    assert mine.shape == wanted.shape
    assert mine.dtype == torch.float32
    assert distance(mine, wanted) < 1e-5


def test_one_part_may_outweigh_the_other() -> None:
    """Scores so far apart that one part's share is zero in float32: no NaN, the right one wins."""
    for factor in (100.0, -100.0):
        given_ = inputs(4, 50, 1, 2, 16)
        q, k, past = given_["q"], given_["k"], given_["past"]
        assert q is not None
        assert k is not None
        assert past is not None
        q.abs_()
        k.abs_().mul_(factor)
        past[0].abs_().mul_(-factor)
        mine, wanted = both(given_)
        assert mine.isfinite().all()
        assert distance(mine, wanted) < 1e-5


def test_bfloat16_is_as_good_as_its_inputs() -> None:
    mine, wanted = both(to(inputs(70, 200, 2, 2, 32), torch.bfloat16))
    assert distance(mine, wanted) < 1e-2


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_plain_way_where_the_operator_does_not_go(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*args: object, **kwargs: object) -> None:
        raise AssertionError("the fast operator was called")

    monkeypatch.setattr(module, "_partial", never)
    mine, wanted = both(to(inputs(9, 20, 1, 2, 16), dtype))
    assert distance(mine, wanted) < 1e-3

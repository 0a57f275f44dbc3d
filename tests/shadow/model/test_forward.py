"""Laws of the forward: a pure function of ids, position, rows and state."""

from __future__ import annotations

import subprocess
import sys
import threading
from hashlib import sha256
from pathlib import Path

import pytest
import torch

from shadow_reader.shadow.model.layers import rms_norm
from shadow_reader.shadow.model.qwen35 import Qwen35, RecurrentState
from tests.shadow.model.oracle import distance
from tests.shadow.model.small import bits, read_in_parts, small_model, some_ids, step_bits


@pytest.fixture(scope="module")
def model() -> Qwen35:
    return small_model()


def elsewhere(tensor: torch.Tensor, offset: int) -> torch.Tensor:
    """The same values at another alignment and with another stride."""
    room = torch.full((tensor.numel() + offset + 7,), float("nan"), dtype=tensor.dtype)
    moved = room[offset : offset + tensor.numel()].view(tensor.shape)
    return moved.copy_(tensor)


def test_inputs_are_never_written(model: Qwen35) -> None:
    pages, state, _ = read_in_parts(model, some_ids(100), [64, 36])
    ids = some_ids(70, seed=1)
    before = bits(ids, *pages, state.recurrent, state.conv)
    model.forward(ids, position=100, past=pages, state=state)
    assert bits(ids, *pages, state.recurrent, state.conv) == before


def test_a_failing_call_leaves_nothing(model: Qwen35) -> None:
    pages, state, _ = read_in_parts(model, some_ids(100), [64, 36])
    before = bits(*pages, state.recurrent, state.conv)
    plain = step_bits(model.forward(some_ids(9), position=100, past=pages, state=state))
    out_of_range = torch.tensor([1, 2, model.config.vocab])
    with pytest.raises(IndexError):
        model.forward(out_of_range, position=100, past=pages, state=state)
    broken = RecurrentState(state.recurrent[:1], state.conv)
    with pytest.raises((IndexError, AssertionError)):
        model.forward(some_ids(9), position=100, past=pages, state=broken)
    assert bits(*pages, state.recurrent, state.conv) == before
    again = step_bits(model.forward(some_ids(9), position=100, past=pages, state=state))
    assert again == plain


def test_watching_shows_every_layer_and_changes_no_bit(model: Qwen35) -> None:
    pages, state, _ = read_in_parts(model, some_ids(100), [64, 36])
    ids, seen = some_ids(9, seed=4), dict[int, torch.Tensor]()
    plain = model.forward(ids, position=100, past=pages, state=state)
    watched = model.forward(
        ids, position=100, past=pages, state=state, watch=lambda i, x: seen.update({i: x.clone()})
    )
    assert step_bits(watched) == step_bits(plain)
    assert list(seen) == list(range(model.config.layers))
    assert all(x.shape == (9, model.config.hidden) for x in seen.values())
    last = rms_norm(seen[model.config.layers - 1], model._parameters.norm, model.config.norm_eps)
    assert torch.equal(last, plain.hidden)
    assert not torch.equal(seen[0], seen[1])


def test_bits_do_not_depend_on_where_rows_and_state_lie(model: Qwen35) -> None:
    pages, state, _ = read_in_parts(model, some_ids(192), [64, 64, 64])
    ids = some_ids(65, seed=2)
    plain = step_bits(model.forward(ids, position=192, past=pages, state=state))
    slab = torch.full((7, *pages[0].shape), float("nan"))
    for index, page in zip((5, 0, 3), pages, strict=True):
        slab[index] = page
    scattered = [slab[5], slab[0], slab[3]]
    for offset in (0, 1, 3, 9):
        moved = RecurrentState(elsewhere(state.recurrent, offset), elsewhere(state.conv, offset))
        for past in (scattered, [elsewhere(page, offset) for page in pages]):
            assert step_bits(model.forward(ids, position=192, past=past, state=moved)) == plain


def test_bits_do_not_depend_on_how_rows_are_cut(model: Qwen35) -> None:
    pages, state, _ = read_in_parts(model, some_ids(192), [64, 64, 64])
    ids = some_ids(20, seed=3)
    plain = step_bits(model.forward(ids, position=192, past=pages, state=state))
    whole = torch.cat(pages, dim=3)
    for cuts in ([192], [1, 191], [100, 0, 92]):
        past = [part.clone() for part in torch.split(whole, cuts, dim=3)]
        assert step_bits(model.forward(ids, position=192, past=past, state=state)) == plain
    views = list(torch.split(whole, [50, 142], dim=3))
    assert step_bits(model.forward(ids, position=192, past=views, state=state)) == plain


def test_bits_do_not_depend_on_what_ran_before(model: Qwen35) -> None:
    ids = some_ids(64)
    first = step_bits(model.forward(ids, position=0, past=[], state=model.empty_state()))
    read_in_parts(model, some_ids(150, seed=4), [1, 2, 140, 7])
    again = step_bits(model.forward(ids, position=0, past=[], state=model.empty_state()))
    assert again == first


def test_bits_are_the_same_in_another_thread(model: Qwen35) -> None:
    ids, found = some_ids(130), []

    def run() -> None:
        step = model.forward(ids, position=0, past=[], state=model.empty_state())
        found.append(step_bits(step))

    run()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found[0] == found[1]


_DIGEST = """
from hashlib import sha256
from tests.shadow.model.small import read_in_parts, small_model, some_ids, step_bits
steps = read_in_parts(small_model(), some_ids(300), [128, 128, 44])[2]
print(sha256(b"".join(part for step in steps for part in step_bits(step))).hexdigest())
"""


def test_bits_are_the_same_in_another_process(model: Qwen35) -> None:
    steps = read_in_parts(model, some_ids(300), [128, 128, 44])[2]
    here = sha256(b"".join(part for step in steps for part in step_bits(step))).hexdigest()
    root = Path(__file__).parents[3]
    run = [sys.executable, "-c", _DIGEST]
    there = subprocess.run(run, cwd=root, capture_output=True, text=True, check=True, timeout=100)
    assert there.stdout.strip() == here


@pytest.mark.parametrize("cuts", [[1] * 90, [7, 64, 1, 18], [89, 1]])
def test_parts_equal_one_pass(model: Qwen35, cuts: list[int]) -> None:
    ids = some_ids(90, seed=5)
    pages, state, steps = read_in_parts(model, ids, cuts)
    whole = model.forward(ids, position=0, past=[], state=model.empty_state())
    assert distance(torch.cat([step.hidden for step in steps]), whole.hidden) < 1e-5
    assert distance(torch.cat(pages, dim=3), whole.rows) < 1e-5
    assert distance(state.recurrent, whole.state.recurrent) < 1e-5
    assert distance(state.conv, whole.state.conv) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shapes_and_dtypes(dtype: torch.dtype) -> None:
    model = small_model(dtype=dtype)
    config = model.config
    step = model.forward(some_ids(5), position=0, past=[], state=model.empty_state())
    assert step.hidden.shape == (5, config.hidden)
    assert step.rows.shape == (config.full_layers, 2, config.kv_heads, 5, config.head_dim)
    empty = model.empty_state()
    assert step.state.recurrent.shape == empty.recurrent.shape
    assert step.state.conv.shape == empty.conv.shape
    assert step.hidden.dtype == step.rows.dtype == step.state.conv.dtype == dtype
    assert step.state.recurrent.dtype == torch.float32
    size = dtype.itemsize
    assert step.rows.numel() * size == 5 * config.row_bytes(size)
    held = step.state.recurrent.numel() * 4 + step.state.conv.numel() * size
    assert held == config.state_bytes(size)


def test_logits_of_chosen_ids_are_rows_of_all(model: Qwen35) -> None:
    step = model.forward(some_ids(6), position=0, past=[], state=model.empty_state())
    chosen = torch.tensor([100, 0, 7, 7])
    every = model.logits(step.hidden)
    assert every.shape == (6, model.config.vocab)
    assert every.dtype == torch.float32
    torch.testing.assert_close(model.logits(step.hidden, chosen), every[:, chosen])
    last = model.logits(step.hidden[-1:], chosen)
    torch.testing.assert_close(last, every[-1:, chosen])


def test_build_names_what_bits_depend_on(model: Qwen35) -> None:
    assert torch.__version__ in model.build
    assert f"{torch.get_num_threads()} threads" in model.build


def test_our_own_mistakes_are_caught(model: Qwen35) -> None:
    empty = model.empty_state()
    pages, state, _ = read_in_parts(model, some_ids(8), [8])
    with pytest.raises(AssertionError, match="at least one id"):
        model.forward(some_ids(0), position=0, past=[], state=empty)
    with pytest.raises(AssertionError, match="int64"):
        model.forward(some_ids(3).int(), position=0, past=[], state=empty)
    with pytest.raises(AssertionError, match="past holds 8 rows at position 9"):
        model.forward(some_ids(3), position=9, past=pages, state=state)
    with pytest.raises(AssertionError, match="leaves the context"):
        model.forward(some_ids(3), position=4095, past=[], state=empty)
    half = [page.bfloat16() for page in pages]
    with pytest.raises(AssertionError, match="a page is"):
        model.forward(some_ids(3), position=8, past=half, state=state)

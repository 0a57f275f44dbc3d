from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shadow_reader.errors import OutOfRoomError
from shadow_reader.events.ids import Ids
from shadow_reader.events.view import MAX_CHECKPOINTS
from shadow_reader.shadow.account import MemoryAccount
from shadow_reader.shadow.memory import Memory
from shadow_reader.shadow.pool import PagePool
from shadow_reader.shadow.state import SessionState
from tests.shadow.models import SMALL, Fake, Watched, small_model
from tests.shadow.states import joined, make_ids

GRID = 64
STATE_BYTES = SMALL.state_bytes(4)
PAGE_BYTES = GRID * SMALL.row_bytes(4)


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def make_state(
    model: Watched | None = None, cap_bytes: int = 2**28
) -> tuple[SessionState, MemoryAccount]:
    model = model or small_model()
    c = model.config
    account = MemoryAccount(cap_bytes)
    pool = PagePool(
        shape=(c.full_layers, 2, c.kv_heads, GRID, c.head_dim),
        dtype=model.dtype,
        device=model.device,
        account=account,
        poison=True,
    )
    memory = Memory(pool, account, c.state_bytes(model.dtype.itemsize))
    return SessionState(model, memory), account


def read_to(state: SessionState, known: Ids, stop: int) -> None:
    while state.committed < stop:
        state.read_chunk(known)


def test_a_new_state_stands_at_zero_and_takes_nothing() -> None:
    state, account = make_state()
    assert (state.committed, len(state.ids), state.pages, state.checkpoints) == (0, 0, (), ())
    assert account.bytes == state.stats().bytes == 0
    assert not bool(state.recurrent_state().recurrent.any())


def test_a_checkpoint_at_zero_is_free() -> None:
    state, account = make_state()
    assert state.checkpoint() == state.digest()
    assert (state.checkpoints, account.bytes, account.peak_bytes) == ((), 0, 0)


def test_the_oldest_of_six_checkpoints_goes() -> None:
    state, account = make_state()
    known = make_ids(9 * GRID, 1)
    digests = []
    for line in range(GRID, 9 * GRID + 1, GRID):
        read_to(state, known, line)
        digests.append(state.checkpoint())
        assert len(state.checkpoints) == min(MAX_CHECKPOINTS, line // GRID)
    assert [c.position for c in state.checkpoints] == [GRID * k for k in range(4, 10)]
    assert [c.digest for c in state.checkpoints] == digests[3:]
    assert len(set(digests)) == 9
    assert state.stats().bytes == 9 * PAGE_BYTES + 6 * STATE_BYTES
    assert account.bytes == 16 * PAGE_BYTES + 6 * STATE_BYTES


def test_a_seventh_checkpoint_needs_no_more_room() -> None:
    cap = 9 * PAGE_BYTES + (MAX_CHECKPOINTS + 2) * STATE_BYTES + PAGE_BYTES + STATE_BYTES
    state, account = make_state(cap_bytes=cap)
    known = make_ids(7 * GRID, 1)
    for line in range(GRID, 7 * GRID + 1, GRID):
        read_to(state, known, line)
        with account.hold(account.left_bytes if line == 7 * GRID else 0, "all that is left"):
            state.checkpoint()
    assert [c.position for c in state.checkpoints] == [GRID * k for k in range(2, 8)]


def test_a_checkpoint_twice_at_one_line_is_one() -> None:
    state, account = make_state()
    known = make_ids(GRID, 1)
    read_to(state, known, GRID)
    first, held = state.checkpoint(), account.bytes
    assert (state.checkpoint(), account.bytes, len(state.checkpoints)) == (first, held, 1)


def test_a_checkpoint_takes_memory_only_when_the_session_reads_on() -> None:
    state, account = make_state()
    known = make_ids(3 * GRID, 1)
    read_to(state, known, 2 * GRID)
    with account.hold(account.left_bytes, "all that is left"):
        state.checkpoint()
    before = account.bytes
    with (
        account.hold(account.left_bytes - STATE_BYTES + 1, "all but a state"),
        pytest.raises(OutOfRoomError, match=f"the next state needs {STATE_BYTES} bytes"),
    ):
        state.read_chunk(known)
    assert (state.committed, account.bytes) == (2 * GRID, before)
    read_to(state, known, 3 * GRID)
    assert account.bytes == before + STATE_BYTES


def test_a_checkpoint_whose_digest_fails_changes_nothing() -> None:
    state, account = make_state()
    known = make_ids(2 * GRID, 1)
    read_to(state, known, GRID)
    state.checkpoint()
    read_to(state, known, 2 * GRID)
    before = state.stats(), account.bytes
    with patch("shadow_reader.shadow.standing.tensor_hashes", side_effect=RuntimeError("lost")):
        with pytest.raises(RuntimeError, match="lost"):
            state.checkpoint()
        assert (state.stats(), account.bytes) == before
    assert state.checkpoint() == state.digest(recompute=True)


def test_a_rewind_to_a_checkpoint_brings_back_its_digest() -> None:
    state, _ = make_state()
    known = make_ids(5 * GRID, 1)
    digests = {}
    for line in (GRID, 3 * GRID, 5 * GRID):
        read_to(state, known, line)
        digests[line] = state.checkpoint()
    for cut, line in ((5 * GRID - 1, 3 * GRID), (3 * GRID - 1, GRID)):
        other = joined(known.take(cut), [(known[cut] + 1) % 256])
        assert state.align(other).committed == line
        assert state.digest() == state.digest(recompute=True) == digests[line]
        assert [c.position for c in state.checkpoints] == [k for k in digests if k <= line]


def test_one_checkpoint_can_be_gone_back_to_again_and_again() -> None:
    state, account = make_state()
    start = make_ids(GRID + 10, 1)
    read_to(state, start, GRID)
    digest = state.checkpoint()
    held = []
    for seed in range(4):
        known = joined(start, make_ids(2 * GRID, seed))
        state.align(known)
        read_to(state, known, 3 * GRID)
        assert state.align(start).committed == GRID
        assert state.digest(recompute=True) == digest
        held.append(account.bytes)
    assert held == [16 * PAGE_BYTES + STATE_BYTES] * 4


def test_state_tensors_own_exactly_their_bytes() -> None:
    """A tensor that is a view of something larger would hold bytes nobody counts."""
    state, _ = make_state()
    read_to(state, make_ids(GRID, 1), GRID)
    held = state.recurrent_state()
    for tensor in (held.recurrent, held.conv):
        assert tensor.is_contiguous()
        assert tensor.untyped_storage().nbytes() == tensor.nbytes
    assert held.recurrent.nbytes + held.conv.nbytes == STATE_BYTES


def test_ids_read_share_the_memory_of_the_known_ids() -> None:
    state, _ = make_state()
    known = make_ids(3 * GRID, 1)
    read_to(state, known, 2 * GRID)
    assert np.shares_memory(state.ids.array(), known.array())
    again = Ids.of(known.array())
    state.align(again)
    assert np.shares_memory(state.ids.array(), again.array())


def test_a_fork_does_not_claim_the_end_of_the_known_ids_storage() -> None:
    """Otherwise the next output delta would copy the whole session."""
    state, _ = make_state(Fake())
    known = make_ids(GRID + 40, 1).extend(make_ids(1, 2))
    read_to(state, known, GRID)
    with state.fork(joined(known.array(GRID).tolist(), [7, 8, 9])):
        pass
    longer = known.extend(make_ids(3, 3))
    assert np.shares_memory(longer.array(), known.array())


def test_pages_are_hashed_only_when_a_digest_is_asked_for_and_once() -> None:
    state, _ = make_state()
    known = make_ids(4 * GRID, 1)
    read_to(state, known, 3 * GRID)
    assert [page.fingerprint for page in state.pages] == [None] * 3
    digest = state.digest()
    remembered = [page.fingerprint for page in state.pages]
    assert None not in remembered
    read_to(state, known, 4 * GRID)
    assert [page.fingerprint for page in state.pages] == [*remembered, None]
    assert state.digest() != digest
    assert [page.fingerprint for page in state.pages][:3] == remembered


@settings(max_examples=30, deadline=None)
@given(
    part=st.sampled_from(["page", "recurrent", "conv"]),
    page=st.integers(0, 2),
    place=st.floats(0, 1, exclude_max=True),
)
def test_any_flipped_bit_of_a_state_changes_its_digest(part: str, page: int, place: float) -> None:
    with torch.inference_mode():
        state, _ = make_state()
        read_to(state, make_ids(3 * GRID, 1), 3 * GRID)
        digest = state.digest()
        held = state.recurrent_state()
        tensor = {"page": state.pages[page].rows, "recurrent": held.recurrent, "conv": held.conv}
        raw = tensor[part].view(-1).view(torch.uint8)
        bit = int(place * len(raw) * 8)
        raw[bit // 8] ^= 1 << (bit % 8)
        assert state.digest(recompute=True) != digest
        raw[bit // 8] ^= 1 << (bit % 8)
        assert state.digest(recompute=True) == digest


def test_the_digest_depends_on_the_ids_themselves() -> None:
    """Two ids could have equal embeddings: the bits would agree, the ids not."""

    class Blind(Fake):
        def forward(self, ids: torch.Tensor, **others: object) -> object:  # type: ignore[override]  # passes all on
            return super().forward(torch.zeros_like(ids), **others)  # type: ignore[arg-type]  # as it came

    digests = set()
    for seed in (1, 2):
        state, _ = make_state(Blind())
        read_to(state, make_ids(2 * GRID, seed), 2 * GRID)
        digests.add(state.digest())
    assert len(digests) == 2


def test_known_ids_must_begin_with_what_was_read_and_reach_the_line() -> None:
    state, _ = make_state(Fake())
    read_to(state, make_ids(GRID, 1), GRID)
    with pytest.raises(AssertionError, match="do not reach grid line 128"):
        state.read_chunk(make_ids(GRID, 1))
    with pytest.raises(AssertionError, match="differ from what was read"):
        state.read_chunk(make_ids(2 * GRID, 2))


def test_a_model_that_gives_rows_of_another_shape_changes_nothing() -> None:
    class Short(Fake):
        def forward(self, ids: torch.Tensor, **others: object) -> object:  # type: ignore[override]  # passes all on
            return super().forward(ids[1:], **others)  # type: ignore[arg-type]  # as it came

    state, account = make_state(Short())
    with pytest.raises(AssertionError, match="a page is"):
        state.read_chunk(make_ids(GRID, 1))
    assert (state.committed, account.bytes) == (0, 0)


@pytest.mark.parametrize("missing", range(1, 4))
def test_each_part_of_a_read_can_be_refused(missing: int) -> None:
    """The next state, then the rows on their way, then the slab."""
    needs = [STATE_BYTES, PAGE_BYTES + STATE_BYTES, 16 * PAGE_BYTES]
    words = ["the next state", "a chunk being read", "a slab of 16 pages"]
    state, account = make_state()
    room = sum(needs[:missing]) - 1
    with (
        account.hold(account.left_bytes - room, "all but"),
        pytest.raises(OutOfRoomError, match=f"{words[missing - 1]} needs"),
    ):
        state.read_chunk(make_ids(GRID, 1))
    assert (state.committed, account.bytes) == (0, 0)
    state.read_chunk(make_ids(GRID, 1))


def test_release_lets_go_of_everything() -> None:
    state, account = make_state()
    known = make_ids(4 * GRID, 1)
    for line in (2 * GRID, 4 * GRID):
        read_to(state, known, line)
        state.checkpoint()
    held = state.stats().bytes
    assert held == 4 * PAGE_BYTES + 2 * STATE_BYTES
    assert state.release() == held
    assert (account.bytes, state.committed, state.stats().bytes, state.release()) == (0, 0, 0, 0)


def test_pages_lie_in_the_order_they_were_read() -> None:
    state, _ = make_state()
    read_to(state, make_ids(20 * GRID, 1), 20 * GRID)
    addresses = [page.address for page in state.pages]
    assert all(one < other for one, other in pairwise(addresses))

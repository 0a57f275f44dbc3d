from __future__ import annotations

import pytest
import torch

from shadow_reader.events.ids import Ids
from shadow_reader.shadow import memory as memory_module
from shadow_reader.shadow.account import MemoryAccount
from shadow_reader.shadow.memory import HeldState, Memory, chunk_bytes
from shadow_reader.shadow.model.qwen35 import RecurrentState
from shadow_reader.shadow.pool import Page, PagePool
from tests.shadow.states import joined, make_ids

GRID = 4
SHAPE = (1, 2, 1, GRID, 8)
PAGE_BYTES = 2 * GRID * 8 * 4
STATE_BYTES = 100


def make_memory(pages: int = 256) -> Memory:
    account = MemoryAccount(pages * PAGE_BYTES + 10 * STATE_BYTES)
    cpu = torch.device("cpu")
    pool = PagePool(shape=SHAPE, dtype=torch.float32, device=cpu, account=account, poison=True)
    return Memory(pool, account, STATE_BYTES)


def read(memory: Memory, ids: Ids) -> list[Page]:
    """A page for each chunk of ``ids``, held once by the caller, full of its number."""
    pages = list[Page]()
    for index in range(len(ids) // GRID):
        page = memory.pool.allocate()
        page.write(torch.full(SHAPE, float(index)))
        below = pages[-1] if pages else None
        pages.append(memory.commit_page(page, chunk_bytes(ids, index, GRID), below))
    return pages


def stand(memory: Memory, page: Page) -> HeldState:
    """A state at the end of ``page``, held once by the caller."""
    held = memory.reserve_state("a test")
    held.fill(RecurrentState(torch.zeros(1), torch.zeros(1)))
    return memory.commit_state(held, page)


def test_the_same_ids_have_the_same_page_and_it_is_counted_once() -> None:
    memory, ids = make_memory(), make_ids(3 * GRID, 1)
    mine, others = read(memory, ids), read(memory, Ids.of(ids.array()))
    assert [page.holders for page in mine] == [2, 2, 2]
    assert all(one is other for one, other in zip(mine, others, strict=True))
    assert memory.pool.pages == 3
    assert memory.let_go(mine, ()) == 0
    assert [float(page.rows.flatten()[0]) for page in others] == [0, 1, 2]
    assert memory.let_go(others, ()) == 3 * PAGE_BYTES
    assert (memory.pool.pages, memory.account.bytes) == (0, 0)


def test_the_same_chunk_elsewhere_is_another_page() -> None:
    memory, chunk = make_memory(), make_ids(GRID, 1)
    pages = read(memory, joined(chunk, chunk, make_ids(GRID, 2)))
    others = read(memory, joined(make_ids(GRID, 3), chunk))
    assert len({*pages, *others}) == 5
    assert memory.trail(joined(chunk, chunk)).pages == tuple(pages[:2])


def test_a_page_that_is_held_keeps_its_rows_and_then_is_poison() -> None:
    memory = make_memory()
    (page,), _beside = read(memory, make_ids(GRID, 1)), read(memory, make_ids(GRID, 2))
    rows = page.rows
    memory.hold([page], ())
    memory.let_go([page], ())
    assert not bool(rows.isnan().any())
    memory.let_go([page], ())
    assert bool(rows.isnan().all())
    with pytest.raises(AssertionError, match="was freed"):
        memory.hold([page], ())


def test_the_same_ids_have_the_same_state_and_it_is_counted_once() -> None:
    memory = make_memory()
    top = read(memory, make_ids(GRID, 1))[0]
    slab = memory.account.bytes
    one, other = stand(memory, top), stand(memory, top)
    assert one is other
    assert (one.holders, memory.account.bytes) == (2, slab + STATE_BYTES)
    assert memory.let_go((), [one]) == 0
    assert memory.let_go((), [one]) == STATE_BYTES
    assert memory.account.bytes == slab
    with pytest.raises(AssertionError, match="let go of"):
        _ = one.state
    with pytest.raises(AssertionError, match="let go of"):
        memory.hold((), [one])


def test_a_trail_ends_where_nobody_went_and_knows_the_deepest_state_on_it() -> None:
    memory, ids = make_memory(), make_ids(6 * GRID, 1)
    pages = read(memory, ids)
    low, high = stand(memory, pages[1]), stand(memory, pages[5])
    whole = memory.trail(ids)
    assert (whole.pages, whole.depth, whole.state) == (tuple(pages), 6, high)
    parted = memory.trail(joined(ids.take(5 * GRID - 1), [(ids[5 * GRID - 1] + 1) % 256]))
    assert (parted.pages, parted.depth, parted.state) == (tuple(pages[:4]), 2, low)
    assert memory.trail(ids.take(2 * GRID - 1)).depth == 0
    memory.let_go((), [low, high])
    assert memory.trail(ids).state is None
    memory.let_go(pages, ())
    assert memory.trail(ids).pages == ()


def test_the_ids_are_compared_not_their_hash_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a hash that gives all ids one name, nothing is taken for something else."""
    monkeypatch.setattr(memory_module, "prefix_after", lambda _previous, _chunk: b"same")
    memory, ids = make_memory(), make_ids(2 * GRID, 1)
    pages = read(memory, ids)
    states = [stand(memory, page) for page in reversed(pages)]
    other = read(memory, make_ids(2 * GRID, 2))
    assert len({*pages, *other}) == 4
    assert states[0] is not states[1]
    assert memory.trail(make_ids(2 * GRID, 2)).depth == 0
    found = memory.trail(ids)
    assert (found.pages, found.state) == (tuple(pages[:1]), None)
    memory.let_go([*pages, *other], states)
    assert (memory.pool.pages, memory.account.bytes) == (0, 0)


def test_a_reserved_state_that_is_never_filled_gives_its_bytes_back() -> None:
    memory = make_memory()
    held = memory.reserve_state("a test")
    assert memory.account.bytes == STATE_BYTES
    assert memory.let_go((), [held]) == STATE_BYTES
    assert memory.account.bytes == 0
    with pytest.raises(AssertionError, match="let go of"):
        held.fill(RecurrentState(torch.zeros(1), torch.zeros(1)))


def test_a_page_let_go_of_too_often_is_found_out() -> None:
    memory = make_memory()
    pages = read(memory, make_ids(GRID, 1))
    memory.let_go(pages, ())
    with pytest.raises(AssertionError, match="was freed"):
        memory.let_go(pages, ())

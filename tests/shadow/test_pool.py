from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shadow_reader.errors import OutOfRoomError
from shadow_reader.shadow.account import MemoryAccount
from shadow_reader.shadow.pool import Page, PagePool, slab_pages

SHAPE = (2, 2, 1, 4, 8)
PAGE_BYTES = 2 * 2 * 1 * 4 * 8 * 4


def make_pool(*, pages: int = 1024, poison: bool = True) -> PagePool:
    account = MemoryAccount(pages * PAGE_BYTES)
    cpu = torch.device("cpu")
    return PagePool(shape=SHAPE, dtype=torch.float32, device=cpu, account=account, poison=poison)


def committed(pool: PagePool, value: float = 1.0) -> Page:
    page = pool.allocate()
    page.write(torch.full(SHAPE, value))
    page.commit()
    return page


def values(rows: torch.Tensor) -> set[float]:
    return set(rows.flatten().tolist())


def test_a_slab_is_sixteen_pages_and_is_counted_whole() -> None:
    pool = make_pool()
    pages = [pool.allocate() for _ in range(16)]
    assert (pool.slabs, pool.pages, pool._account.bytes) == (1, 16, 16 * PAGE_BYTES)
    pool.allocate()
    assert (pool.slabs, pool.pages, pool._account.bytes) == (2, 17, 32 * PAGE_BYTES)
    assert len({page.address for page in pages}) == 16


@pytest.mark.parametrize(
    ("cap_pages", "expected"), [(1024, 16), (128, 16), (127, 15), (16, 2), (15, 1), (1, 1), (0, 1)]
)
def test_a_slab_takes_at_most_an_eighth_of_the_cap(cap_pages: int, expected: int) -> None:
    assert slab_pages(PAGE_BYTES, cap_pages * PAGE_BYTES) == expected
    assert make_pool(pages=cap_pages).slab_pages == expected


def test_a_slab_never_moves() -> None:
    pool = make_pool()
    first = committed(pool, 3.0)
    address = first.rows.data_ptr()
    others = [committed(pool) for _ in range(100)]
    for page in others[::2]:
        pool.let_go(page)
    assert first.rows.data_ptr() == address
    assert values(first.rows) == {3.0}


def test_pages_do_not_overlap() -> None:
    pool = make_pool()
    pages = [committed(pool, float(index)) for index in range(40)]
    assert [values(page.rows) for page in pages] == [{float(i)} for i in range(40)]


def test_a_committed_page_is_never_written_again() -> None:
    page = committed(make_pool())
    with pytest.raises(AssertionError, match="never written again"):
        page.write(torch.zeros(SHAPE))
    assert values(page.rows) == {1.0}


def test_a_page_is_not_read_before_it_is_committed() -> None:
    page = make_pool().allocate()
    with pytest.raises(AssertionError, match="not committed"):
        _ = page.rows


@pytest.mark.parametrize("rows", [torch.zeros(2, 2, 1, 3, 8), torch.zeros(SHAPE).double()])
def test_rows_of_another_shape_or_dtype_are_not_taken(rows: torch.Tensor) -> None:
    page = make_pool().allocate()
    with pytest.raises(AssertionError, match="a page is"):
        page.write(rows)


def test_a_freed_page_is_dead() -> None:
    pool = make_pool()
    page, _keeps_the_slab = committed(pool), committed(pool)
    pool.let_go(page)
    with pytest.raises(AssertionError, match="was freed"):
        _ = page.rows
    with pytest.raises(AssertionError, match="was freed"):
        pool.let_go(page)
    assert pool.pages == 1


def test_free_pages_are_reused_lowest_address_first() -> None:
    pool = make_pool()
    pages = [committed(pool) for _ in range(40)]
    for index in (33, 5, 17, 2):
        pool.let_go(pages[index])
    assert [pool.allocate().address for _ in range(4)] == [(0, 2), (0, 5), (1, 1), (2, 1)]


def test_an_empty_slab_is_given_back_and_its_number_used_again() -> None:
    pool = make_pool()
    pages = [committed(pool) for _ in range(48)]
    for page in pages[16:32]:
        pool.let_go(page)
    assert (pool.slabs, pool._account.bytes) == (2, 32 * PAGE_BYTES)
    assert pool.allocate().address == (1, 0)
    assert pool.slabs == 3


def test_poison_is_on_every_page_that_holds_nothing() -> None:
    pool = make_pool()
    kept, freed = committed(pool), committed(pool)
    rows = freed.rows
    pool.let_go(freed)
    assert bool(rows.isnan().all())
    assert not bool(kept.rows.isnan().any())
    assert bool(pool._slabs[0].tensor[1:].isnan().all())


def test_without_poison_freed_pages_are_left_as_they_are() -> None:
    pool = make_pool(poison=False)
    kept, freed = committed(pool), committed(pool)
    rows = freed.rows
    pool.let_go(freed)
    assert values(rows) == values(kept.rows) == {1.0}


def test_a_refused_slab_says_what_was_asked_what_is_left_and_the_cap() -> None:
    pool = make_pool(pages=8)
    pages = [committed(pool) for _ in range(8)]
    with pytest.raises(OutOfRoomError) as refused:
        pool.allocate()
    assert refused.value.details == {
        "field": "cap_gb",
        "what": "a slab of 1 pages",
        "asked": PAGE_BYTES,
        "left": 0,
        "limit": 8 * PAGE_BYTES,
    }
    assert (pool.pages, pool.slabs, pool._account.bytes) == (8, 8, 8 * PAGE_BYTES)
    pool.let_go(pages[3])
    assert pool.allocate().address == (3, 0)


def test_a_slab_that_the_device_refuses_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_kwargs: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("none left")

    pool = make_pool()
    monkeypatch.setattr(torch, "empty", refuse)
    with pytest.raises(torch.OutOfMemoryError):
        pool.allocate()
    assert (pool.slabs, pool.pages, pool._account.bytes) == (0, 0, 0)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 40),
    st.lists(st.tuples(st.booleans(), st.integers(0, 1000)), max_size=120),
)
def test_any_order_of_taking_and_freeing_keeps_the_account(
    cap_pages: int, steps: list[tuple[bool, int]]
) -> None:
    pool, held = make_pool(pages=cap_pages), list[tuple[Page, float]]()
    account = pool._account
    for number, (take, choice) in enumerate(steps):
        if take:
            before = account.bytes
            try:
                held.append((committed(pool, float(number)), float(number)))
            except OutOfRoomError:
                assert account.bytes == before
                assert before + pool.slab_bytes > account.cap_bytes
        elif held:
            pool.let_go(held.pop(choice % len(held))[0])
        assert account.bytes == pool.slabs * pool.slab_bytes <= account.cap_bytes
        assert pool.pages == len(held)
        assert {page.address[0] for page, _ in held} == set(pool._slabs)
    assert all(values(page.rows) == {value} for page, value in held)
    for page, _ in held:
        pool.let_go(page)
    assert (account.bytes, pool.slabs) == (0, 0)


def test_held_bytes_come_back_when_the_block_fails() -> None:
    account = MemoryAccount(100)

    def fail() -> None:
        with account.hold(60, "a test"):
            assert account.left_bytes == 40
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert (account.bytes, account.peak_bytes) == (0, 60)


def test_the_account_takes_no_more_than_the_cap() -> None:
    account = MemoryAccount(100)
    account.take(100, "all of it")
    with pytest.raises(OutOfRoomError, match="one more needs 1 bytes, but 0 are left"):
        account.take(1, "one more")
    account.give(100)
    with pytest.raises(AssertionError, match="given back"):
        account.give(1)

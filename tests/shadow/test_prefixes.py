"""Sessions that begin alike: who starts where, what is left for the third, and for how long."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from shadow_reader.events.ids import Ids
from shadow_reader.shadow import prefixes
from shadow_reader.shadow.engine import Aligned
from shadow_reader.shadow.torch_engine import TorchEngine
from tests.shadow.models import SMALL, Fake, Watched, small_model
from tests.shadow.snapshots import bring_back, spill
from tests.shadow.states import (
    GIB,
    assert_all_is_counted,
    assert_like_fresh,
    joined,
    make_ids,
    read_all,
)

GRID = 64
SYSTEM = make_ids(5 * GRID + 20, 1)


def make_engine(model: Watched | None = None, **changes: Any) -> TorchEngine:
    options: dict[str, Any] = {"grid": GRID, "cap_bytes": GIB, "poison": True}
    return TorchEngine(model or small_model(), **options | changes)


def prompt(seed: int, chunks: int = 3) -> Ids:
    """The system prompt that all share, and words of one's own."""
    return joined(SYSTEM, make_ids(chunks * GRID, seed))


def points(engine: TorchEngine) -> dict[int, set[str]]:
    """Each point's line, and who passes through it."""
    return {len(point.pages) * GRID: set(point.names) for point in engine._points}


def test_a_session_starts_at_another_ones_checkpoint() -> None:
    model = small_model()
    engine = make_engine(model)
    known = prompt(2)
    read_all(engine, "a", known.take(4 * GRID))
    digest = engine.checkpoint("a")
    read_all(engine, "a", known)
    held = engine.stats().bytes
    model.calls.clear()
    assert engine.align("b", prompt(3)) == Aligned(4 * GRID, None, 4 * GRID)
    assert (engine.digest("b"), model.calls) == (digest, [])
    assert engine.stats().bytes == held
    assert_like_fresh(engine, "b", prompt(3), model)
    assert read_all(engine, "b", prompt(3)) == 4
    for name, ids in (("a", known), ("b", prompt(3))):
        assert_like_fresh(engine, name, ids, model)
    assert_all_is_counted(engine)


def test_a_session_starts_where_another_one_stands() -> None:
    engine = make_engine()
    known = make_ids(4 * GRID, 1)
    read_all(engine, "a", known)
    assert engine.align("b", known.extend(make_ids(GRID, 2))) == Aligned(4 * GRID, None, 4 * GRID)
    assert engine.state_stats("b") == engine.state_stats("a")


def test_a_session_that_went_back_starts_where_another_one_has_been() -> None:
    """Also above the cut: it goes on along the other one's ids."""
    engine = make_engine()
    mine, others = make_ids(6 * GRID, 1), make_ids(6 * GRID, 2)
    read_all(engine, "a", mine)
    read_all(engine, "b", others)
    assert engine.align("a", others) == Aligned(6 * GRID, 0, 6 * GRID)
    assert Aligned(6 * GRID, 0, 6 * GRID).reread == 0
    assert_like_fresh(engine, "a", others, small_model())


def test_a_standing_session_keeps_to_itself() -> None:
    engine = make_engine()
    known = make_ids(6 * GRID, 1)
    read_all(engine, "a", known.take(GRID))
    read_all(engine, "b", known)
    assert engine.align("a", known) == Aligned(GRID)


def test_what_is_read_again_beside_another_takes_no_second_page() -> None:
    engine = make_engine()
    read_all(engine, "a", prompt(2))
    engine.align("b", prompt(3))
    assert read_all(engine, "b", prompt(3)) == 8
    assert engine._pool.pages == 8 + 3
    assert_all_is_counted(engine)


@pytest.mark.parametrize("off", [-1, 0, 1])
def test_the_third_session_starts_where_the_second_left_the_first(off: int) -> None:
    """The sessions part one before a grid line, at it, and one after it."""
    model = small_model()
    engine = make_engine(model)
    system = make_ids(5 * GRID + off, 9)
    line = 5 * GRID if off >= 0 else 4 * GRID
    ids = {name: joined(system, [n], make_ids(3 * GRID, n)) for n, name in enumerate("abc")}
    read_all(engine, "a", ids["a"])
    assert engine.align("b", ids["b"]) == Aligned(0)
    read_all(engine, "b", ids["b"])
    assert points(engine) == {line: {"a", "b"}}
    assert engine.stats().prefix_points == 1
    assert engine.align("c", ids["c"]) == Aligned(line, None, line)
    read_all(engine, "c", ids["c"])
    assert points(engine) == {line: {"a", "b", "c"}}
    for name, known in ids.items():
        assert_like_fresh(engine, name, known, model)
    assert_all_is_counted(engine)


def test_a_point_outlives_the_states_of_its_sessions_but_not_their_names() -> None:
    engine = make_engine()
    read_all(engine, "a", prompt(2))
    read_all(engine, "b", prompt(3))
    engine.drop("a")
    engine.drop("b")
    assert points(engine) == {5 * GRID: {"a", "b"}}
    page, state = GRID * SMALL.row_bytes(4), SMALL.state_bytes(4)
    assert engine.stats().bytes == 16 * page + state
    assert engine.drop("a", erased=True) == 0
    assert points(engine) == {5 * GRID: {"b"}}
    assert engine.align("b", prompt(3)).shared == 5 * GRID
    engine.drop("b")
    assert engine.drop("b", erased=True) == 5 * page + state
    assert (points(engine), engine.stats().bytes) == ({}, 0)


def test_erasing_one_session_harms_no_other() -> None:
    model = small_model()
    engine = make_engine(model)
    ids = {name: prompt(seed) for seed, name in enumerate("abcd")}
    for name, known in ids.items():
        read_all(engine, name, known)
        engine.checkpoint(name)
    for gone in "abc":
        engine.drop(gone, erased=True)
        del ids[gone]
        for name, known in ids.items():
            assert_like_fresh(engine, name, known, model)
        assert_all_is_counted(engine)
    assert points(engine) == {5 * GRID: {"d"}}


def test_nothing_keeps_an_erased_sessions_ids() -> None:
    """Pages and points of the others hold chunks of their own, never a view of its ids."""
    engine = make_engine(Fake())
    mine = prompt(2)
    storage = weakref.ref(mine._buffer.data)
    read_all(engine, "a", mine)
    for seed, name in ((3, "b"), (4, "c")):
        read_all(engine, name, prompt(seed))
    engine.drop("a", erased=True)
    assert storage() is not None
    del mine
    gc.collect()
    assert storage() is None
    assert points(engine) == {5 * GRID: {"b", "c"}}


def test_a_restored_session_is_named_where_it_passes() -> None:
    engine, elsewhere = make_engine(), make_engine()
    read_all(elsewhere, "c", prompt(4))
    snapshot = spill(elsewhere, "c")
    read_all(engine, "a", prompt(2))
    read_all(engine, "b", prompt(3))
    assert bring_back(engine, "c", snapshot, prompt(4)) == 8 * GRID
    assert points(engine) == {5 * GRID: {"a", "b", "c"}}
    assert_all_is_counted(engine)


def test_a_closed_engine_holds_no_points() -> None:
    engine = make_engine()
    read_all(engine, "a", prompt(2))
    read_all(engine, "b", prompt(3))
    engine.close()
    assert (engine.stats().bytes, engine.stats().prefix_points) == (0, 0)


def test_a_session_that_left_a_points_path_is_no_longer_named() -> None:
    engine = make_engine()
    read_all(engine, "a", prompt(2))
    read_all(engine, "b", prompt(3))
    engine.align("b", make_ids(8 * GRID, 4))
    assert points(engine) == {5 * GRID: {"a"}}
    engine.drop("a")
    engine.align("a", prompt(2).take(5 * GRID - 1))
    assert points(engine) == {}


def test_a_session_that_never_reaches_the_parting_leaves_nothing() -> None:
    engine = make_engine()
    read_all(engine, "a", prompt(2))
    engine.align("b", prompt(3))
    engine.read_chunk("b", prompt(3))
    elsewhere = joined(SYSTEM.take(GRID + 3), make_ids(8 * GRID, 5))
    read_all(engine, "b", elsewhere)
    assert points(engine) == {}


def test_the_point_of_use_longest_ago_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes, "MAX_POINTS", 3)
    engine = make_engine(Fake())
    systems = [make_ids(2 * GRID, 100 + n) for n in range(4)]

    def pair(n: int) -> None:
        for half in range(2):
            read_all(engine, f"{n}{half}", joined(systems[n], make_ids(GRID, 2 * n + half)))

    for n in range(3):
        pair(n)
    assert engine.align("again", joined(systems[0], [1, 2, 3])).shared == 2 * GRID
    pair(3)
    kept = [set(point.names) for point in engine._points]
    assert kept == [{"20", "21"}, {"00", "01", "again"}, {"30", "31"}]
    assert_all_is_counted(engine)


def test_names_and_lines_to_watch_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes, "MAX_NAMES", 3)
    monkeypatch.setattr(prefixes, "MAX_WATCHED", 4)
    engine = make_engine(Fake())
    read_all(engine, "a", prompt(2))
    for n in range(9):
        engine.align(f"w{n}", prompt(10 + n))
    assert list(engine._points._watched) == ["w5", "w6", "w7", "w8"]
    engine.drop("w6", erased=True)
    assert list(engine._points._watched) == ["w5", "w7", "w8"]
    for n in range(9):
        read_all(engine, f"s{n}", prompt(30 + n))
    assert points(engine) == {5 * GRID: {"s6", "s7", "s8"}}


def test_a_fork_of_an_unread_session_starts_there_too() -> None:
    """Whoever asks about a new session gets an answer above what others have read of it."""
    engine = make_engine()
    read_all(engine, "a", SYSTEM)
    line = engine.align("b", prompt(3)).committed
    tail = Ids.of(prompt(3).array(line))
    odds = engine.ask("b", tail=tail, question=make_ids(5, 7), letters=(1, 2))
    other = make_engine()
    read_all(other, "b", prompt(3).take(line))
    assert odds == other.ask("b", tail=tail, question=make_ids(5, 7), letters=(1, 2))

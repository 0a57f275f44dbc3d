"""What gives way, and in which order, before a session does."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shadow_reader.errors import OutOfRoomError
from shadow_reader.events.ids import Ids
from shadow_reader.shadow.model.facts import least_bytes
from shadow_reader.shadow.torch_engine import TorchEngine
from tests.shadow.models import MINIMAL, SMALL, Fake, small_model
from tests.shadow.states import (
    GIB,
    assert_all_is_counted,
    assert_like_fresh,
    joined,
    make_ids,
    read_all,
)

GRID = 64
STATE = MINIMAL.state_bytes(4)


def make_engine(cap_bytes: int = GIB) -> TorchEngine:
    return TorchEngine(Fake(), grid=GRID, cap_bytes=cap_bytes, poison=True)


def with_checkpoints(engine: TorchEngine, name: str, lines: Sequence[int], seed: int) -> None:
    """A session with checkpoints at these chunks, standing one chunk above the last."""
    known = make_ids((lines[-1] + 1) * GRID, seed)
    for line in lines:
        read_all(engine, name, known.take(line * GRID))
        engine.checkpoint(name)
    read_all(engine, name, known)


def checkpoints(engine: TorchEngine, *names: str) -> list[tuple[int, ...]]:
    """Each session's checkpoints, in chunks."""
    found = [engine.state_stats(name) for name in names]
    return [tuple(line // GRID for line in stats.checkpoints) for stats in found if stats]


def test_the_lowest_of_the_first_goes_first_and_the_newest_last() -> None:
    engine = make_engine()
    with_checkpoints(engine, "a", [1, 2, 3], 1)
    with_checkpoints(engine, "b", [2, 4], 2)
    with_checkpoints(engine, "later", [1, 2], 3)
    digests = {name: engine.digest(name) for name in ("a", "b", "later")}
    seen = []
    for _ in range(5):
        assert engine.give_way(["a", "b"]) == STATE
        seen.append(checkpoints(engine, "a", "b"))
        assert_all_is_counted(engine)
    assert seen == [
        [(2, 3), (2, 4)],
        [(3,), (2, 4)],
        [(3,), (4,)],
        [(), (4,)],
        [(), ()],
    ]
    held = engine.stats().bytes
    assert engine.give_way(["a", "b"]) == 0
    assert engine.stats().bytes == held
    assert checkpoints(engine, "later") == [(1, 2)]
    assert {name: engine.digest(name) for name in digests} == digests


def test_prefix_points_go_before_any_checkpoint() -> None:
    engine = make_engine()
    system = make_ids(3 * GRID, 1)
    for seed, name in enumerate("ab"):
        read_all(engine, name, joined(system, make_ids(2 * GRID, seed + 5)))
        engine.checkpoint(name)
        read_all(engine, name, joined(system, make_ids(2 * GRID, seed + 5), make_ids(GRID, 9)))
    assert engine.stats().prefix_points == 1
    assert engine.give_way([]) == STATE
    assert (engine.stats().prefix_points, engine.give_way([])) == (0, 0)
    assert checkpoints(engine, "a", "b") == [(5,), (5,)]


def test_a_point_that_frees_nothing_stays() -> None:
    """It goes together with the checkpoint that holds the same state."""
    engine = make_engine()
    system = make_ids(3 * GRID, 1)
    read_all(engine, "a", joined(system, make_ids(2 * GRID, 5)))
    known = joined(system, make_ids(2 * GRID, 6))
    read_all(engine, "b", known.take(3 * GRID))
    engine.align("b", known)
    engine.checkpoint("b")
    read_all(engine, "b", known)
    assert engine.stats().prefix_points == 1
    assert engine.give_way(["a"]) == 0
    assert engine.stats().prefix_points == 1
    assert engine.give_way(["a", "b"]) == STATE
    assert (engine.stats().prefix_points, checkpoints(engine, "b")) == (0, [()])
    assert_all_is_counted(engine)


def test_what_a_session_stands_on_never_goes() -> None:
    engine = make_engine()
    known = make_ids(2 * GRID, 1)
    read_all(engine, "a", known)
    engine.checkpoint("a")
    digest = engine.digest("a")
    assert engine.give_way(["a"]) == 0
    assert (checkpoints(engine, "a"), engine.digest("a")) == ([(2,)], digest)


def test_a_state_that_several_hold_goes_when_all_of_them_may_let_go() -> None:
    engine = make_engine()
    with_checkpoints(engine, "a", [2], 1)
    known = joined(make_ids(3 * GRID, 1).take(2 * GRID), make_ids(2 * GRID, 7))
    assert engine.align("b", known).shared == 2 * GRID
    engine.checkpoint("b")
    read_all(engine, "b", known)
    assert engine.give_way(["a"]) == engine.give_way(["b"]) == 0
    assert checkpoints(engine, "a", "b") == [(2,), (2,)]
    assert engine.give_way(["a", "b"]) == STATE
    assert checkpoints(engine, "a", "b") == [(), ()]


def test_a_pinned_state_does_not_go() -> None:
    engine = make_engine()
    with_checkpoints(engine, "a", [1, 2], 1)
    pinned = engine.pin("a")
    assert pinned is not None
    assert engine.give_way(["a"]) == 0
    assert checkpoints(engine, "a") == [(1, 2)]
    pinned.release()
    assert engine.give_way(["a"]) == STATE


@settings(max_examples=40, deadline=None)
@given(
    spare_states=st.integers(0, 40),
    turns=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 3)), max_size=30),
)
def test_case_29_under_any_cap_checkpoints_give_way_and_the_peak_stays_below(
    spare_states: int, turns: list[tuple[str, int]]
) -> None:
    """Every session gets on as long as its own rows and state fit beside the others'."""
    model = Fake()
    cap_bytes = least_bytes(MINIMAL, torch.float32.itemsize, GRID) + spare_states * STATE
    engine = TorchEngine(model, grid=GRID, cap_bytes=cap_bytes, poison=True)
    known = {name: make_ids(8 * GRID, seed) for seed, name in enumerate("abcd")}
    heard = list[str]()
    for name, chunks in turns:
        heard = [*(other for other in heard if other != name), name]
        stats = engine.state_stats(name)
        stop = min((stats.committed if stats else 0) + chunks * GRID, 8 * GRID)
        while True:
            try:
                read_all(engine, name, known[name].take(stop))
                engine.checkpoint(name)
                break
            except OutOfRoomError:
                if not engine.give_way(heard):
                    assert not any(checkpoints_above(engine, other) for other in heard)
                    if heard[0] == name:
                        break
                    engine.drop(heard.pop(0))
            assert engine.stats().peak_bytes <= cap_bytes
        assert_all_is_counted(engine)
    for name, ids in known.items():
        assert_like_fresh(engine, name, ids, model)


def read_or_not(engine: TorchEngine, name: str, known: Ids) -> bool:
    """Read to the end; whether room was missing."""
    try:
        read_all(engine, name, known)
    except OutOfRoomError:
        return True
    return False


def checkpoints_above(engine: TorchEngine, name: str) -> bool:
    """Whether the session has a checkpoint that is not what it stands on."""
    stats = engine.state_stats(name)
    return stats is not None and any(line != stats.committed for line in stats.checkpoints)


def test_case_29_four_sessions_with_six_checkpoints_each_make_room_for_a_fifth() -> None:
    model = small_model()
    page, state = GRID * SMALL.row_bytes(4), SMALL.state_bytes(4)
    cap_bytes = 4 * 8 * page + 4 * 7 * state + page + state
    engine = TorchEngine(model, grid=GRID, cap_bytes=cap_bytes, poison=True)
    known = {name: make_ids(7 * GRID, seed) for seed, name in enumerate("abcde")}
    for name in "abcd":
        for line in range(1, 7):
            read_all(engine, name, known[name].take(line * GRID))
            engine.checkpoint(name)
        read_all(engine, name, known[name])
    freed = 0
    while read_or_not(engine, "e", known["e"]):
        given = engine.give_way("abcde")
        assert given == state
        freed += given
    assert engine.stats().peak_bytes <= cap_bytes
    assert freed
    left = [len(lines) for lines in checkpoints(engine, *"abcd")]
    assert left == sorted(left)
    assert sum(left) == 24 - freed // state
    for name, ids in known.items():
        assert_like_fresh(engine, name, ids, model)

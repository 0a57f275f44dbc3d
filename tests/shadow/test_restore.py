"""Bringing a spilled state back: bit for bit, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shadow_reader.errors import OutOfRoomError, SnapshotError
from shadow_reader.events.ids import Ids
from shadow_reader.events.snapshots import RawTensor
from shadow_reader.shadow.engine import Aligned
from shadow_reader.shadow.torch_engine import TorchEngine
from tests.shadow.models import MINIMAL, Fake, Watched, small_model
from tests.shadow.snapshots import Snapshot, bring_back, flipped, put_all, spill
from tests.shadow.states import (
    GIB,
    assert_all_is_counted,
    assert_like_fresh,
    joined,
    make_ids,
    read_all,
    same_bits,
    tensors,
)

GRID = 64
KNOWN = make_ids(20 * GRID + 9, 1)
MARKS = (3, 12, 20)


def make_engine(model: Watched | None = None, cap_bytes: int = GIB) -> TorchEngine:
    return TorchEngine(model or Fake(), grid=GRID, cap_bytes=cap_bytes, poison=True)


def read_with_marks(engine: TorchEngine, session: str = "s") -> None:
    for mark in MARKS:
        read_all(engine, session, KNOWN.take(mark * GRID))
        engine.checkpoint(session)


def spilled(model: Watched | None = None) -> Snapshot:
    engine = make_engine(model)
    read_with_marks(engine)
    return spill(engine, "s")


@pytest.fixture(scope="module")
def snapshot() -> Snapshot:
    return spilled()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_law_2_a_restored_state_is_the_state_that_was_spilled(dtype: torch.dtype) -> None:
    model = small_model(dtype=dtype)
    engine, other = make_engine(model), make_engine(model)
    read_with_marks(engine)
    model.calls.clear()
    assert bring_back(other, "s", spill(engine, "s"), KNOWN) == 20 * GRID
    assert model.calls == []
    assert other.state_stats("s") == engine.state_stats("s")
    assert same_bits(tensors(other, "s"), tensors(engine, "s"))
    assert other.align("s", KNOWN) == Aligned(20 * GRID)
    longer = joined(KNOWN, make_ids(2 * GRID, 2))
    read_all(other, "s", longer)
    assert_like_fresh(other, "s", longer, model)
    assert_all_is_counted(other)


def test_case_19_a_restored_session_rewinds_to_its_checkpoints(snapshot: Snapshot) -> None:
    model = Fake()
    engine = make_engine(model)
    bring_back(engine, "s", snapshot, KNOWN)
    digests = dict(snapshot.manifest.checkpoints)
    for mark, cut in ((12, 12 * GRID + 5), (3, 12 * GRID - 1)):
        known = joined(KNOWN.take(cut), make_ids(200, mark))
        assert engine.align("s", known) == Aligned(mark * GRID, cut)
        assert engine.digest("s") == digests[mark * GRID]
        read_all(engine, "s", known)
        assert_like_fresh(engine, "s", known, model)


@pytest.mark.parametrize(
    ("cut", "line", "pieces"),
    [
        (20 * GRID + 5, 20, 2),
        (20 * GRID, 20, 2),
        (20 * GRID - 1, 12, 1),
        (12 * GRID, 12, 1),
        (12 * GRID - 1, 3, 1),
        (3 * GRID, 3, 1),
    ],
)
def test_only_what_lies_below_the_useful_line_is_read(
    snapshot: Snapshot, cut: int, line: int, pieces: int
) -> None:
    model = Fake()
    engine = make_engine(model)
    known = joined(KNOWN.take(cut), make_ids(4 * GRID, 3))
    restore = engine.begin_restore("s", snapshot.manifest, snapshot.head, known)
    assert (restore.position, len(restore.pieces)) == (line * GRID, pieces)
    put_all(restore, snapshot)
    assert engine.state_stats("s") is None
    assert restore.finish() == line * GRID
    stats = engine.state_stats("s")
    assert stats is not None
    assert (stats.pages, stats.checkpoints) == (
        line,
        tuple(mark * GRID for mark in MARKS if mark <= line),
    )
    assert engine.align("s", known) == Aligned(line * GRID)
    read_all(engine, "s", known)
    assert_like_fresh(engine, "s", known, model)
    assert_all_is_counted(engine)


def test_ids_that_agree_up_to_no_line_restore_nothing(snapshot: Snapshot) -> None:
    engine = make_engine()
    known = joined(KNOWN.take(3 * GRID - 1), make_ids(100, 4))
    with pytest.raises(SnapshotError, match="first other id is 191"):
        engine.begin_restore("s", snapshot.manifest, snapshot.head, known)
    assert engine.stats().bytes == 0


def test_a_restore_shares_what_is_resident_and_reads_only_the_rest(snapshot: Snapshot) -> None:
    engine = make_engine()
    beside = joined(KNOWN.take(17 * GRID + 3), make_ids(GRID, 5))
    read_all(engine, "beside", beside)
    assert engine._pool.pages == 18
    restore = engine.begin_restore("s", snapshot.manifest, snapshot.head, KNOWN)
    assert [piece.start for piece in restore.pieces] == [16]
    engine.drop("beside")
    put_all(restore, snapshot)
    restore.finish()
    assert engine.digest("s") == snapshot.manifest.digest
    assert engine._pool.pages == 20
    assert_all_is_counted(engine)


def test_what_another_session_read_meanwhile_is_shared_at_the_end(snapshot: Snapshot) -> None:
    engine = make_engine()
    restore = engine.begin_restore("s", snapshot.manifest, snapshot.head, KNOWN)
    restore.put(restore.pieces[1], snapshot.pieces[restore.pieces[1].name])
    read_with_marks(engine, "beside")
    put_all(restore, snapshot)
    assert engine._pool.pages == 40
    restore.finish()
    assert (engine._pool.pages, engine.digest("s")) == (20, engine.digest("beside"))
    assert_all_is_counted(engine)


def test_a_restored_session_is_shared_with_others(snapshot: Snapshot) -> None:
    engine = make_engine()
    bring_back(engine, "s", snapshot, KNOWN)
    known = joined(KNOWN.take(12 * GRID + 1), make_ids(GRID, 5))
    assert engine.align("other", known) == Aligned(12 * GRID, None, 12 * GRID)


def other_weights() -> TorchEngine:
    model = Fake()
    model.weights_hash = "another"
    return make_engine(model)


def other_grid() -> TorchEngine:
    return TorchEngine(Fake(), grid=2 * GRID, cap_bytes=GIB)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (other_weights, "weights"),
        (other_grid, "grid"),
        (lambda: make_engine(small_model(dtype=torch.bfloat16)), "weights"),
    ],
)
def test_law_7_another_engines_snapshot_is_refused(
    snapshot: Snapshot, make: Callable[[], TorchEngine], field: str
) -> None:
    engine = make()
    with pytest.raises(SnapshotError, match=field) as refused:
        engine.begin_restore("s", snapshot.manifest, snapshot.head, KNOWN)
    assert refused.value.details["field"] == field
    assert engine.stats().bytes == 0


@settings(max_examples=40, deadline=None)
@given(
    where=st.sampled_from(["piece", "head"]), which=st.integers(0, 99), place=st.floats(0, 0.999)
)
def test_law_7_any_flipped_bit_is_refused_and_nothing_stays(
    where: str, which: int, place: float
) -> None:
    snapshot = spilled_once()
    engine = make_engine()
    read_all(engine, "other", make_ids(3 * GRID, 8))
    held, digest = engine.stats().bytes, engine.digest("other")
    files = [snapshot.head] if where == "head" else list(snapshot.pieces.values())
    file = files[which % len(files)]
    name = sorted(file)[which // 2 % len(file)]
    raw = file[name]
    wrong = {**file, name: flipped(raw, int(place * 8 * memoryview(raw.data).nbytes))}
    if where == "head":
        broken = replace(snapshot, head=wrong)
    else:
        broken = snapshot.with_piece(list(snapshot.pieces)[which % len(files)], wrong)
    with pytest.raises(SnapshotError, match=name.replace(".", r"\.")):
        bring_back(engine, "s", broken, KNOWN)
    assert (engine.state_stats("s"), engine.stats().bytes) == (None, held)
    assert engine.digest("other") == digest
    assert_all_is_counted(engine)


_once = list[Snapshot]()


def spilled_once() -> Snapshot:
    if not _once:
        _once.append(spilled())
    return _once[0]


def without(file: str, name: str) -> Callable[[Snapshot], Snapshot]:
    def change(snapshot: Snapshot) -> Snapshot:
        if file == "head":
            return replace(snapshot, head={n: t for n, t in snapshot.head.items() if n != name})
        piece = list(snapshot.pieces)[int(file)]
        left = {n: t for n, t in snapshot.pieces[piece].items() if n != name}
        return snapshot.with_piece(piece, left)

    return change


def beside(file: str) -> Callable[[Snapshot], Snapshot]:
    extra = {"extra": RawTensor("F32", (1,), bytes(4))}

    def change(snapshot: Snapshot) -> Snapshot:
        if file == "head":
            return replace(snapshot, head={**snapshot.head, **extra})
        piece = list(snapshot.pieces)[int(file)]
        return snapshot.with_piece(piece, {**snapshot.pieces[piece], **extra})

    return change


def reshaped(dtype: str) -> Callable[[Snapshot], Snapshot]:
    def change(snapshot: Snapshot) -> Snapshot:
        piece = next(iter(snapshot.pieces))
        raw = snapshot.pieces[piece]["page.3"]
        other = RawTensor(dtype, raw.shape[::-1], raw.data)
        return snapshot.with_piece(piece, {**snapshot.pieces[piece], "page.3": other})

    return change


def truncated(snapshot: Snapshot) -> Snapshot:
    raw = snapshot.head["recurrent.192"]
    short = RawTensor(raw.dtype, raw.shape, bytes(raw.data)[:-4])
    return replace(snapshot, head={**snapshot.head, "recurrent.192": short})


def swapped_pages(snapshot: Snapshot) -> Snapshot:
    piece = next(iter(snapshot.pieces))
    pages = dict(snapshot.pieces[piece])
    pages["page.3"], pages["page.4"] = pages["page.4"], pages["page.3"]
    return snapshot.with_piece(piece, pages)


def manifest_with(**changes: Any) -> Callable[[Snapshot], Snapshot]:
    return lambda snapshot: replace(snapshot, manifest=replace(snapshot.manifest, **changes))


def lying_piece(snapshot: Snapshot) -> Snapshot:
    """Two pages change places, and their digests with them: only the chain can tell."""
    moved = swapped_pages(snapshot)
    first, *rest = moved.manifest.pieces
    digests = dict(first.digests)
    digests["page.3"], digests["page.4"] = digests["page.4"], digests["page.3"]
    pieces = (replace(first, digests=digests), *rest)
    return replace(moved, manifest=replace(moved.manifest, pieces=pieces))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (without("0", "page.5"), "tensors of piece 0-16"),
        (without("1", "page.17"), "tensors of piece 16-20"),
        (without("head", "conv.768"), "tensors of the head"),
        (without("head", "ids"), "ids is None"),
        (beside("0"), "tensors of piece 0-16"),
        (beside("head"), "tensors of the head"),
        (reshaped("F32"), "tensor page.3"),
        (reshaped("BF16"), "tensor page.3"),
        (truncated, "tensor recurrent.192"),
        (swapped_pages, "digest of page.3"),
        (lying_piece, "state digest at 768"),
        (manifest_with(digest="0" * 32), "state digest at 1280"),
        (manifest_with(ids_hash="0" * 32), "ids_hash"),
        (manifest_with(position=19 * GRID), "checkpoints"),
    ],
)
def test_law_7_what_contradicts_itself_is_refused_and_nothing_stays(
    snapshot: Snapshot, change: Callable[[Snapshot], Snapshot], why: str
) -> None:
    engine = make_engine()
    with pytest.raises(SnapshotError, match=why):
        bring_back(engine, "s", change(snapshot), KNOWN)
    assert (engine.state_stats("s"), engine.stats().bytes) == (None, 0)
    assert_all_is_counted(engine)
    assert bring_back(engine, "s", snapshot, KNOWN) == 20 * GRID


def test_a_put_without_room_may_be_made_again(snapshot: Snapshot) -> None:
    page, state = GRID * MINIMAL.row_bytes(4), MINIMAL.state_bytes(4)
    engine = make_engine(cap_bytes=24 * page + 5 * state)
    read_all(engine, "other", make_ids(5 * GRID, 8))
    restore = engine.begin_restore("s", snapshot.manifest, snapshot.head, KNOWN)
    held, pieces = engine.stats().bytes, restore.pieces
    first, second = pieces
    restore.put(first, snapshot.pieces[first.name])
    held = engine.stats().bytes
    with pytest.raises(OutOfRoomError):
        restore.put(second, snapshot.pieces[second.name])
    assert (restore.pieces, engine.stats().bytes) == ((second,), held)
    engine.drop("other")
    restore.put(second, snapshot.pieces[second.name])
    restore.finish()
    assert engine.digest("s") == snapshot.manifest.digest
    assert engine.stats().peak_bytes <= engine.stats().cap_bytes
    assert_all_is_counted(engine)


def test_a_restore_without_room_for_its_states_holds_nothing(snapshot: Snapshot) -> None:
    engine = make_engine(cap_bytes=2 * MINIMAL.state_bytes(4))
    with pytest.raises(OutOfRoomError, match="a restored state needs"):
        engine.begin_restore("s", snapshot.manifest, snapshot.head, KNOWN)
    assert engine.stats().bytes == 0


Injection = Callable[[BaseException], AbstractContextManager[Any]]


def failing(target: str, after: int) -> Injection:
    """Let the function fail at its call number ``after``."""

    def inject(error: BaseException) -> AbstractContextManager[Any]:
        module, _, name = f"shadow_reader.shadow.{target}".rpartition(".")
        real, calls = getattr(__import__(module, fromlist=[name]), name), 0

        def call(*arguments: Any, **others: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > after:
                raise error
            return real(*arguments, **others)

        return patch(f"{module}.{name}", call)

    return inject


STEPS = [
    *((f"from_host/{n}", failing("restore.from_host", n)) for n in range(5)),
    *((f"page hashes/{n}", failing("restore.tensor_hashes", n)) for n in range(2)),
    *((f"state hashes/{n}", failing("memory.tensor_hashes", n)) for n in range(3)),
    *((f"chain/{n}", failing("restore.chain", n)) for n in (0, 19)),
    *((f"digest/{n}", failing("restore.joined_digest", n)) for n in range(3)),
]


@pytest.mark.parametrize("inject", [step for _, step in STEPS], ids=[name for name, _ in STEPS])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, torch.OutOfMemoryError])
def test_a_restore_that_fails_anywhere_leaves_the_account_as_it_was(
    snapshot: Snapshot, inject: Injection, error: type[BaseException]
) -> None:
    engine = make_engine()
    read_all(engine, "other", make_ids(3 * GRID, 8))
    held = engine.stats().bytes
    mapped = OutOfRoomError if error is torch.OutOfMemoryError else error
    with inject(error("injected")), pytest.raises(mapped):
        bring_back(engine, "s", snapshot, KNOWN)
    assert (engine.state_stats("s"), engine.stats().bytes) == (None, held)
    assert_all_is_counted(engine)
    assert bring_back(engine, "s", snapshot, KNOWN) == 20 * GRID


@pytest.mark.parametrize("error", [SnapshotError, RuntimeError])
def test_a_piece_that_fails_ends_the_restore_by_itself(
    snapshot: Snapshot, error: type[Exception]
) -> None:
    engine = make_engine()
    restore = engine.begin_restore("s", snapshot.manifest, snapshot.head, KNOWN)
    first, second = restore.pieces
    restore.put(first, snapshot.pieces[first.name])
    with (
        patch("shadow_reader.shadow.restore.from_host", side_effect=error("injected")),
        pytest.raises(error, match="injected"),
    ):
        restore.put(second, snapshot.pieces[second.name])
    assert (restore.pieces, engine.stats().bytes) == ((), 0)
    with pytest.raises(AssertionError, match="the restore is over"):
        restore.finish()


@pytest.mark.parametrize("error", [SnapshotError, RuntimeError])
def test_a_finish_that_fails_ends_the_restore_by_itself(
    snapshot: Snapshot, error: type[Exception]
) -> None:
    engine = make_engine()
    restore = engine.begin_restore("s", snapshot.manifest, snapshot.head, KNOWN)
    put_all(restore, snapshot)
    with (
        patch("shadow_reader.shadow.restore.chain", side_effect=error("injected")),
        pytest.raises(error, match="injected"),
    ):
        restore.finish()
    assert (engine.state_stats("s"), engine.stats().bytes) == (None, 0)


@pytest.mark.parametrize("puts", [0, 1, 2])
def test_an_aborted_restore_holds_nothing(snapshot: Snapshot, puts: int) -> None:
    engine = make_engine()
    restore = engine.begin_restore("s", snapshot.manifest, snapshot.head, KNOWN)
    for piece in restore.pieces[:puts]:
        restore.put(piece, snapshot.pieces[piece.name])
    restore.abort()
    restore.abort()
    assert (engine.state_stats("s"), engine.stats().bytes) == (None, 0)
    with pytest.raises(AssertionError):
        restore.finish()


def test_an_unfinished_restore_is_not_finished(snapshot: Snapshot) -> None:
    engine = make_engine()
    restore = engine.begin_restore("s", snapshot.manifest, snapshot.head, KNOWN)
    with pytest.raises(AssertionError, match="2 pieces were not put"):
        restore.finish()
    restore.abort()
    assert engine.stats().bytes == 0


def test_a_resident_session_is_not_restored_over(snapshot: Snapshot) -> None:
    engine = make_engine()
    read_all(engine, "s", KNOWN)
    with pytest.raises(AssertionError, match="has a state"):
        engine.begin_restore("s", snapshot.manifest, snapshot.head, KNOWN)


def test_ids_above_the_vocabulary_are_refused() -> None:
    engine = make_engine()
    read_all(engine, "s", Ids.of([65_535] * 2 * GRID))
    snapshot = spill(engine, "s")
    narrow = make_engine()
    narrow._vocabulary = 65_535
    with pytest.raises(SnapshotError, match="highest id is 65535"):
        narrow.begin_restore("s", snapshot.manifest, snapshot.head, Ids.of([65_535] * 2 * GRID))

"""Bringing a spilled state back: bit for bit, from the line that is still known."""

from __future__ import annotations

import pytest
import torch

from shadow_reader.errors import SnapshotError
from shadow_reader.shadow.engine import Aligned
from tests.shadow.models import Fake, small_model
from tests.shadow.restoring import GRID, KNOWN, MARKS, make_engine, read_with_marks
from tests.shadow.snapshots import Snapshot, bring_back, put_all, spill
from tests.shadow.states import (
    assert_all_is_counted,
    assert_like_fresh,
    joined,
    make_ids,
    read_all,
    same_bits,
    tensors,
)


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


def test_a_resident_session_is_not_restored_over(snapshot: Snapshot) -> None:
    engine = make_engine()
    read_all(engine, "s", KNOWN)
    with pytest.raises(AssertionError, match="has a state"):
        engine.begin_restore("s", snapshot.manifest, snapshot.head, KNOWN)

"""What a snapshot may say of itself, with no tensors at hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadow_reader.errors import OutOfRoomError, SnapshotError
from shadow_reader.events.ids import Ids
from shadow_reader.events.snapshots import Manifest, Piece, RawTensor, Span
from shadow_reader.shadow.engine import EngineIdentity
from shadow_reader.shadow.snapshot_rules import (
    MOST_PARTS,
    PIECE_PAGES,
    check_manifest,
    engine_facts,
    hash_of_ids,
    lines_of,
    needed_pieces,
    page_name,
    read_ids,
    restorable_position,
    spans,
    state_names,
)
from tests.fakes import FakeEngine
from tests.shadow.snapshots import bring_back, flipped, spill
from tests.shadow.states import joined, make_ids

IDENTITY = EngineIdentity("small", "w" * 16, 64, "bfloat16", "cpu x", "b", 1)
GRID = IDENTITY.grid
IDS = make_ids(20 * GRID, 1)


def make_manifest(**changes: Any) -> Manifest:
    pieces = tuple(
        Piece(f"{a}-{b}-00", a, b, {page_name(i): "00" for i in range(a, b)}, 1)
        for a, b in spans(20)
    )
    lines = (3 * GRID, 12 * GRID, 20 * GRID)
    names = [name for line in lines for name in state_names(line)]
    ids_hash = hash_of_ids(IDS)
    manifest = Manifest(
        session="s",
        opened_at=0.0,
        engine=engine_facts(IDENTITY),
        position=20 * GRID,
        seq=1,
        ids_hash=ids_hash,
        digest="d",
        checkpoints=((3 * GRID, "x"), (12 * GRID, "y")),
        pieces=pieces,
        head_digests={"ids": ids_hash, **dict.fromkeys(names, "00")},
    )
    return replace(manifest, **changes)


def test_a_manifest_of_ones_own_is_taken_whatever_the_model_is_called() -> None:
    check_manifest(make_manifest(), IDENTITY)
    check_manifest(make_manifest(), replace(IDENTITY, model="renamed"))


@pytest.mark.parametrize(
    ("fact", "other"),
    [
        ("weights", "v" * 16),
        ("grid", 128),
        ("dtype", "float32"),
        ("device", "cuda H200"),
        ("build", "c"),
        ("layout", 2),
    ],
)
def test_law_7_every_fact_of_the_engine_counts(fact: str, other: str | int) -> None:
    manifest = make_manifest(engine={**engine_facts(IDENTITY), fact: other})
    with pytest.raises(SnapshotError) as refused:
        check_manifest(manifest, IDENTITY)
    ours = str(engine_facts(IDENTITY)[fact])
    assert refused.value.details == {
        "session": "s",
        "field": fact,
        "found": str(other),
        "expected": ours,
    }
    assert f"{fact} is {other}, expected {ours}" in refused.value.message


def without(facts: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in facts.items() if key != name}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"engine": without(engine_facts(IDENTITY), "build")}, "build"),
        ({"engine": {**engine_facts(IDENTITY), "more": 1}}, "unknown engine facts"),
        ({"position": 0}, "position"),
        ({"position": -GRID}, "position"),
        ({"position": 20 * GRID - 1}, "position"),
        ({"checkpoints": ((12 * GRID, "y"), (3 * GRID, "x"))}, "checkpoints"),
        ({"checkpoints": ((3 * GRID, "x"), (3 * GRID, "x"))}, "checkpoints"),
        ({"checkpoints": ((21 * GRID, "x"),)}, "checkpoints"),
        ({"checkpoints": ((GRID + 1, "x"),)}, "checkpoints"),
        ({"checkpoints": ((0, "x"),)}, "checkpoints"),
        ({"checkpoints": tuple((k * GRID, "x") for k in range(1, 8))}, "checkpoints"),
        ({"pieces": make_manifest().pieces[:1]}, "pieces"),
        ({"pieces": make_manifest().pieces[::-1]}, "pieces"),
        ({"pieces": ()}, "pieces"),
        ({"head_digests": {"ids": "00"}}, "head tensors"),
        ({"head_digests": {**make_manifest().head_digests, "more": "00"}}, "head tensors"),
    ],
)
def test_law_7_what_contradicts_itself_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(SnapshotError) as refused:
        check_manifest(make_manifest(**changes), IDENTITY)
    assert refused.value.details["field"] == field


def test_a_piece_that_names_other_pages_is_refused() -> None:
    first, second = make_manifest().pieces
    pieces = first, replace(second, digests={"page.1": "00"})
    with pytest.raises(SnapshotError, match="tensors of piece 16-20-00"):
        check_manifest(make_manifest(pieces=pieces), IDENTITY)


def ids_tensor(ids: Ids = IDS, **changes: Any) -> dict[str, RawTensor]:
    values: dict[str, Any] = {"dtype": "U32", "shape": (len(ids),), "data": ids.to_bytes()}
    return {"ids": RawTensor(**values | changes)}


def test_the_ids_of_the_head_are_checked_by_their_hash() -> None:
    manifest = make_manifest()
    assert read_ids(manifest, ids_tensor(), 256) == IDS
    wrong = [
        {},
        ids_tensor(dtype="I32"),
        ids_tensor(shape=(10 * GRID, 2)),
        ids_tensor(data=IDS.to_bytes()[:-4]),
        ids_tensor(make_ids(20 * GRID, 2)),
    ]
    for head in wrong:
        with pytest.raises(SnapshotError):
            read_ids(manifest, head, 256)
    with pytest.raises(SnapshotError, match="highest id"):
        read_ids(manifest, ids_tensor(), int(IDS.array().max()))
    lying = {**manifest.head_digests, "ids": "00"}
    with pytest.raises(SnapshotError, match="digest of ids"):
        read_ids(replace(manifest, head_digests=lying), ids_tensor(), 256)


@given(cut=st.integers(0, 20 * GRID), more=st.integers(0, 100))
def test_the_restorable_position_is_the_newest_line_below_the_first_other_id(
    cut: int, more: int
) -> None:
    manifest, tail = make_manifest(), np.full(more, 999)
    known = joined(IDS.take(cut), tail.tolist())
    expected = max((line for line in (0, 3, 12, 20) if line * GRID <= cut), default=0) * GRID
    assert restorable_position(manifest, IDS, known) == expected


@given(pages=st.integers(0, 100), held=st.integers(0, 100))
def test_needed_pieces_are_those_with_a_page_that_is_used_and_not_held(
    pages: int, held: int
) -> None:
    pieces = tuple(Piece(f"{a}-{b}", a, b, {}, 1) for a, b in spans(100))
    manifest = make_manifest(pieces=pieces)
    found = needed_pieces(manifest, GRID, pages * GRID, held)
    wanted = set(range(held, pages))
    assert found == tuple(p for p in pieces if wanted & set(range(p.start, p.stop)))


def test_pieces_lie_side_by_side() -> None:
    assert spans(0) == ()
    assert spans(1) == ((0, 1),)
    assert spans(PIECE_PAGES) == ((0, PIECE_PAGES),)
    assert spans(PIECE_PAGES + 1) == ((0, PIECE_PAGES), (PIECE_PAGES, PIECE_PAGES + 1))


@given(growth=st.lists(st.integers(-40, 40), max_size=20))
def test_pieces_that_were_written_stay_as_long_as_they_are_few(growth: list[int]) -> None:
    written: tuple[Span, ...] = ()
    pages = 0
    for step in growth:
        pages = max(1, pages + step)
        found = spans(pages, written)
        pieces = tuple(
            Piece(f"{a}-{b}-00", a, b, {page_name(i): "00" for i in range(a, b)}, 1)
            for a, b in found
        )
        check_manifest(_at_pages(pages, pieces), IDENTITY)
        slabs = Counter(start // PIECE_PAGES for start, _ in found)
        assert max(slabs.values()) <= MOST_PARTS
        last = pages // PIECE_PAGES * PIECE_PAGES
        assert set(found) >= {span for span in written if span[1] <= min(pages, last)}
        written = found


def _at_pages(pages: int, pieces: tuple[Piece, ...]) -> Manifest:
    line = pages * GRID
    names = state_names(line)
    digests = {"ids": "00", **dict.fromkeys(names, "00")}
    return make_manifest(position=line, checkpoints=(), pieces=pieces, head_digests=digests)


@pytest.mark.parametrize(
    "found",
    [
        [(0, 16)],
        [(0, 16), (16, 19), (18, 20)],
        [(0, 16), (17, 20)],
        [(1, 16), (16, 20)],
        [(0, 20)],
        [(0, 10), (10, 20)],
        [(0, 16), (16, 16), (16, 20)],
        [(16, 20), (0, 16)],
        [],
    ],
)
def test_pieces_that_do_not_cover_the_pages_once_are_refused(found: list[Span]) -> None:
    pieces = tuple(
        Piece(f"{a}-{b}-00", a, b, {page_name(i): "00" for i in range(a, b)}, 1) for a, b in found
    )
    with pytest.raises(SnapshotError, match="pieces"):
        check_manifest(make_manifest(pieces=pieces), IDENTITY)


def test_the_lines_of_a_head_are_each_there_once() -> None:
    assert lines_of(make_manifest()) == (3 * GRID, 12 * GRID, 20 * GRID)
    marks = ((3 * GRID, "x"), (20 * GRID, "y"))
    assert lines_of(make_manifest(checkpoints=marks)) == (3 * GRID, 20 * GRID)


def test_the_fake_engine_spills_and_restores_by_the_same_rules() -> None:
    engine = FakeEngine(cap=60)
    known = make_ids(20 * engine.grid, 1)
    for line in (3, 12, 20):
        while (engine.align("s", known).committed) < line * engine.grid:
            engine.read_chunk("s", known)
        engine.checkpoint("s")
    snapshot, digest = spill(engine, "s"), engine.digest("s")
    engine.drop("s")
    piece = snapshot.manifest.pieces[0].name
    page = snapshot.pieces[piece]["page.2"]
    bad = snapshot.with_piece(piece, {**snapshot.pieces[piece], "page.2": flipped(page, 9)})
    with pytest.raises(SnapshotError, match=r"digest of page\.2"):
        bring_back(engine, "s", bad, known)
    assert (engine.used, engine.state_stats("s")) == (0, None)
    assert bring_back(engine, "s", snapshot, known) == 20 * engine.grid
    assert engine.digest("s") == digest
    stats = engine.state_stats("s")
    assert stats is not None
    assert stats.checkpoints == tuple(line * engine.grid for line in (3, 12, 20))
    parted = joined(known.take(12 * engine.grid), make_ids(9, 2))
    with pytest.raises(OutOfRoomError):
        bring_back(FakeEngine(cap=10), "s", snapshot, parted)
    other = FakeEngine(shares=True)
    assert bring_back(other, "s", snapshot, parted) == 12 * engine.grid
    assert other.align("t", known).shared == 12 * engine.grid

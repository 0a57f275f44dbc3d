"""Law 7: a snapshot that is of another engine, damaged or contradictory is refused whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shadow_reader.errors import SnapshotError
from shadow_reader.events.ids import Ids
from shadow_reader.events.snapshots import RawTensor
from shadow_reader.shadow.torch_engine import TorchEngine
from tests.shadow.models import Fake, small_model
from tests.shadow.restoring import GRID, KNOWN, make_engine, spilled
from tests.shadow.snapshots import Snapshot, bring_back, flipped, spill
from tests.shadow.states import GIB, assert_all_is_counted, make_ids, read_all


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


def test_ids_above_the_vocabulary_are_refused() -> None:
    engine = make_engine()
    read_all(engine, "s", Ids.of([65_535] * 2 * GRID))
    snapshot = spill(engine, "s")
    narrow = make_engine()
    narrow._vocabulary = 65_535
    with pytest.raises(SnapshotError, match="highest id is 65535"):
        narrow.begin_restore("s", snapshot.manifest, snapshot.head, Ids.of([65_535] * 2 * GRID))

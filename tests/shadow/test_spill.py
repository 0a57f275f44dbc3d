"""Copying a state out while its session goes on: what is written is what was committed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pytest
import torch

from shadow_reader.events.ids import Ids
from shadow_reader.events.snapshots import RawTensor
from shadow_reader.shadow.raw import from_host, host_buffer, is_like, to_host
from shadow_reader.shadow.torch_engine import TorchEngine
from tests.shadow.models import SMALL, Fake, small_model
from tests.shadow.snapshots import Snapshot, copy_out, spill
from tests.shadow.states import GIB, assert_all_is_counted, joined, make_ids, read_all, tensors

GRID = 64
PAGE = GRID * SMALL.row_bytes(4)


def make_engine(*, fake: bool = False, dtype: torch.dtype = torch.float32) -> TorchEngine:
    model = Fake() if fake else small_model(dtype=dtype)
    return TorchEngine(model, grid=GRID, cap_bytes=GIB, poison=True)


def array_of(raw: RawTensor) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.frombuffer(raw.data, dtype=np.uint8)


def test_nothing_resident_is_nothing_to_pin() -> None:
    assert make_engine().pin("s") is None


def test_a_pin_takes_no_memory_and_holds_what_it_pinned() -> None:
    engine = make_engine()
    read_all(engine, "s", make_ids(3 * GRID, 1))
    held = engine.stats().bytes
    pinned = engine.pin("s")
    assert pinned is not None
    assert (pinned.position, pinned.pieces, engine.stats().bytes) == (3 * GRID, 1, held)
    assert engine.drop("s") == 0
    assert engine.stats().bytes == held
    pinned.release()
    pinned.release()
    assert engine.stats().bytes == 0
    with pytest.raises(AssertionError, match="released"):
        pinned.copy_head()


def test_a_snapshot_says_what_it_is() -> None:
    engine = make_engine()
    known = make_ids(19 * GRID + 5, 1)
    for line in (2, 17, 19):
        read_all(engine, "s", known.take(line * GRID))
        engine.checkpoint("s")
    snapshot, identity = spill(engine, "s"), engine.identity
    manifest = snapshot.manifest
    assert (manifest.session, manifest.opened_at, manifest.seq) == ("s", 1.5, 7)
    assert manifest.engine == {
        "weights": "small",
        "grid": GRID,
        "dtype": "float32",
        "device": identity.device,
        "build": identity.build,
        "layout": identity.layout,
    }
    assert (manifest.position, manifest.digest) == (19 * GRID, engine.digest("s"))
    assert [line for line, _ in manifest.checkpoints] == [2 * GRID, 17 * GRID, 19 * GRID]
    assert [(p.start, p.stop, p.bytes) for p in manifest.pieces] == [
        (0, 16, 16 * PAGE),
        (16, 19, 3 * PAGE),
    ]
    assert set(snapshot.head) == {"ids"} | {
        f"{part}.{line * GRID}" for part in ("recurrent", "conv") for line in (2, 17, 19)
    }
    assert {raw.dtype for raw in snapshot.head.values()} == {"U32", "F32"}
    whole = tensors(engine, "s")
    rows = [raw for piece in snapshot.pieces.values() for raw in piece.values()]
    assert all((raw.dtype, raw.shape) == ("F32", (2, 2, 2, GRID, 16)) for raw in rows)
    joined_rows = np.concatenate(
        [array_of(r).view("<f4").reshape(2, 2, 2, GRID, 16) for r in rows], 3
    )
    assert np.array_equal(joined_rows, whole["rows"].numpy())
    assert array_of(snapshot.head["ids"]).view("<u4").tolist() == list(known.take(19 * GRID))


def test_case_23_the_recurrent_state_is_saved_in_float32_whatever_the_model() -> None:
    engine = make_engine(dtype=torch.bfloat16)
    read_all(engine, "s", make_ids(2 * GRID, 1))
    snapshot = spill(engine, "s")
    assert snapshot.head[f"recurrent.{2 * GRID}"].dtype == "F32"
    assert snapshot.head[f"conv.{2 * GRID}"].dtype == "BF16"
    held = engine._sessions["s"].recurrent_state().recurrent
    saved = array_of(snapshot.head[f"recurrent.{2 * GRID}"])
    assert np.array_equal(saved, held.view(-1).view(torch.uint8).numpy())
    pages = [raw for piece in snapshot.pieces.values() for raw in piece.values()]
    assert {raw.dtype for raw in pages} == {"BF16"}


def test_unchanged_pages_have_the_same_names_at_the_next_spill() -> None:
    engine = make_engine(fake=True)
    known = make_ids(40 * GRID, 1)
    names = list[set[str]]()
    for line in (18, 20, 40):
        read_all(engine, "s", known.take(line * GRID))
        names.append(set(spill(engine, "s").pieces))
    assert [len(found) for found in names] == [2, 2, 3]
    assert [len(one & other) for one, other in pairwise(names)] == [1, 1]
    other = make_engine(fake=True)
    read_all(other, "other", known)
    assert set(spill(other, "other").pieces) == names[2]


def test_other_ids_have_other_names_also_above_the_page_that_differs() -> None:
    engine = make_engine(fake=True)
    one = make_ids(32 * GRID, 1)
    read_all(engine, "a", one)
    read_all(engine, "b", joined([(one[0] + 1) % 256], one.array(1).tolist()))
    assert not set(spill(engine, "a").pieces) & set(spill(engine, "b").pieces)


def read_on(engine: TorchEngine, known: Ids) -> None:
    read_all(engine, "s", joined(known, make_ids(3 * GRID, 5)))


def rewind(engine: TorchEngine, known: Ids) -> None:
    read_all(engine, "s", joined(known.take(GRID + 5), make_ids(30 * GRID, 6)))


def drop(engine: TorchEngine, known: Ids) -> None:
    engine.drop("s")
    read_all(engine, "other", make_ids(30 * GRID, 7))


def erase(engine: TorchEngine, known: Ids) -> None:
    engine.drop("s", erased=True)
    read_all(engine, "other", make_ids(30 * GRID, 8))


@pytest.mark.parametrize("meanwhile", [read_on, rewind, drop, erase])
def test_case_32_what_is_written_is_the_state_that_was_pinned(
    meanwhile: Callable[[TorchEngine, Ids], None],
) -> None:
    """The session goes on between any two calls on the pin."""
    known = make_ids(20 * GRID, 1)

    def prepared() -> TorchEngine:
        engine = make_engine(fake=True)
        for line in (GRID, 7 * GRID, 20 * GRID):
            read_all(engine, "s", known.take(line))
            engine.checkpoint("s")
        return engine

    expected = spill(prepared(), "s")
    for moment in range(4):
        engine = prepared()
        pinned = engine.pin("s")
        assert pinned is not None
        pieces = {}
        for index in range(pinned.pieces):
            if moment == index:
                meanwhile(engine, known)
            pieces[pinned.piece(index).name] = dict(pinned.copy_piece(index))
        if moment == 2:
            meanwhile(engine, known)
        head = dict(pinned.copy_head())
        if moment == 3:
            meanwhile(engine, known)
        manifest = pinned.manifest(session="s", opened_at=1.5, seq=7)
        assert Snapshot(manifest, head, pieces) == expected
        pinned.release()
        assert_all_is_counted(engine)


def test_copies_outlive_the_pin_and_the_pages() -> None:
    engine = make_engine(fake=True)
    read_all(engine, "s", make_ids(3 * GRID, 1))
    pinned = engine.pin("s")
    assert pinned is not None
    raw = pinned.copy_piece(0)["page.1"]
    before = bytes(raw.data)
    engine.drop("s")
    pinned.release()
    assert bytes(raw.data) == before
    assert memoryview(raw.data).readonly


@pytest.mark.parametrize("step", ["piece", "copy_piece", "copy_head", "manifest"])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, MemoryError])
def test_a_spill_that_fails_anywhere_leaves_the_account_as_it_was(
    step: str, error: type[BaseException]
) -> None:
    engine = make_engine(fake=True)
    read_all(engine, "s", make_ids(20 * GRID, 1))
    held, before = engine.stats().bytes, tensors(engine, "s")
    where = {"piece": "standing.tensor_hashes", "manifest": "memory.tensor_hashes"}
    target = f"shadow_reader.shadow.{where.get(step, 'spill.to_host')}"
    engine._sessions["s"].pages[0].link = None
    engine._sessions["s"].pages[0].fingerprint = None
    for page in engine._sessions["s"].pages:
        page.link = None
    pinned = engine.pin("s")
    assert pinned is not None
    with patch(target, side_effect=error("injected")), pytest.raises(error, match="injected"):
        copy_out(pinned)
    pinned.release()
    assert engine.stats().bytes == held
    assert_all_is_counted(engine)
    assert tensors(engine, "s").keys() == before.keys()
    assert spill(engine, "s").manifest.digest == engine.digest("s")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.uint32])
def test_tensors_come_back_bit_for_bit(dtype: torch.dtype) -> None:
    raw = torch.randint(0, 256, (3, 5, 8), dtype=torch.uint8)
    tensor = raw.view(-1).view(dtype).view(3, 5, -1)
    copy = to_host({"t": tensor})["t"]
    back = torch.zeros_like(tensor)
    assert is_like(copy, back)
    from_host([(copy, back)])
    assert torch.equal(back.view(torch.uint8), tensor.view(torch.uint8))
    buffer = host_buffer(tensor.nbytes)
    buffer[:] = bytes(copy.data)
    from_host([(RawTensor(copy.dtype, copy.shape, buffer), back.zero_())])
    assert torch.equal(back.view(torch.uint8), tensor.view(torch.uint8))
    other = torch.zeros(3, 5, tensor.shape[2] + 1, dtype=dtype)
    assert not is_like(copy, other)
    with pytest.raises(AssertionError, match="is not"):
        from_host([(copy, other)])

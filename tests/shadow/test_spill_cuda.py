"""Sharing, spilling and restoring on CUDA, in bfloat16; skipped where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from shadow_reader.config import Settings
from shadow_reader.errors import SnapshotError
from shadow_reader.events.snapshots import RawTensor
from shadow_reader.shadow.raw import from_host, host_buffer, to_host
from shadow_reader.shadow.torch_engine import TorchEngine, build_engine
from tests.shadow.models import small_model
from tests.shadow.snapshots import bring_back, copy_out, flipped, spill
from tests.shadow.states import (
    GIB,
    assert_all_is_counted,
    joined,
    make_ids,
    read_all,
    same_bits,
    tensors,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")

VOCABULARY = 248_320
KNOWN = make_ids(40 * 512 + 9, 1, VOCABULARY)


def make_engine(tmp_path: Path) -> TorchEngine:
    return build_engine(Settings(model="random:0.8B", device="cuda", dir=tmp_path))


def test_law_2_a_state_of_the_published_shape_comes_back_bit_for_bit(tmp_path: Path) -> None:
    engine = make_engine(tmp_path)
    for line in (7, 33):
        read_all(engine, "s", KNOWN.take(line * 512))
        engine.checkpoint("s")
    read_all(engine, "s", KNOWN)
    expected, stats, digest = tensors(engine, "s"), engine.state_stats("s"), engine.digest("s")
    snapshot = spill(engine, "s")
    engine.drop("s")
    torch.cuda.synchronize()
    assert bring_back(engine, "s", snapshot, KNOWN) == 40 * 512
    assert (engine.state_stats("s"), engine.digest("s")) == (stats, digest)
    assert same_bits(tensors(engine, "s"), expected)
    longer = joined(KNOWN.take(34 * 512), make_ids(9 * 512, 2, VOCABULARY))
    assert engine.align("s", longer).committed == 33 * 512
    read_all(engine, "s", longer)
    alone = make_engine(tmp_path)
    read_all(alone, "s", longer)
    assert same_bits(tensors(engine, "s"), tensors(alone, "s"))
    assert_all_is_counted(engine)


@pytest.mark.parametrize("kind", ["read-only", "writable", "pinned"])
def test_tensors_go_up_from_any_memory(kind: str) -> None:
    tensor = torch.randn(3, 1000, dtype=torch.bfloat16, device="cuda")
    raw = to_host({"t": tensor})["t"]
    data: bytes | memoryview = bytes(raw.data)
    if kind != "read-only":
        size = len(data)
        buffer = host_buffer(size) if kind == "pinned" else memoryview(bytearray(size))
        buffer[:] = data
        data = buffer
    back = torch.zeros_like(tensor)
    from_host([(RawTensor(raw.dtype, raw.shape, data), back)])
    assert torch.equal(back.view(torch.uint8), tensor.view(torch.uint8))


def test_law_2_an_adopted_state_of_the_published_shape_is_exact(tmp_path: Path) -> None:
    engine, alone = make_engine(tmp_path), make_engine(tmp_path)
    ids = {n: joined(KNOWN.take(9 * 512 + 5), make_ids(3 * 512, n, VOCABULARY)) for n in range(3)}
    for n, known in ids.items():
        read_all(engine, str(n), known)
        read_all(alone, "s", known)
        assert same_bits(tensors(engine, str(n)), tensors(alone, "s"))
        alone.drop("s", erased=True)
    assert engine.stats().prefix_points == 1
    assert engine._pool.pages == 9 + 3 * 3
    assert_all_is_counted(engine)


def test_case_32_a_pinned_state_is_copied_while_the_session_goes_on(tmp_path: Path) -> None:
    engine = make_engine(tmp_path)
    read_all(engine, "s", KNOWN)
    expected, pinned = spill(engine, "s"), engine.pin("s")
    assert pinned is not None
    read_all(engine, "s", joined(KNOWN.take(3), make_ids(30 * 512, 3, VOCABULARY)))
    assert copy_out(pinned) == expected
    pinned.release()
    assert_all_is_counted(engine)


def test_law_7_a_flipped_bit_is_found_on_the_device() -> None:
    model = small_model(device="cuda", dtype=torch.bfloat16)
    engine = TorchEngine(model, grid=64, cap_bytes=GIB, poison=True)
    known = make_ids(5 * 64, 1)
    read_all(engine, "s", known)
    snapshot = spill(engine, "s")
    engine.drop("s")
    (name, pages), head = next(iter(snapshot.pieces.items())), snapshot.head
    bad = snapshot.with_piece(name, {**pages, "page.4": flipped(pages["page.4"], 77)})
    with pytest.raises(SnapshotError, match=r"digest of page\.4"):
        bring_back(engine, "s", bad, known)
    assert engine.stats().bytes == 0
    assert bring_back(engine, "s", snapshot, known) == 5 * 64
    assert head.keys() == spill(engine, "s").head.keys()

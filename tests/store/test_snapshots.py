"""Snapshots in their ordinary life: what is on the disk, what is written and read, and by whom."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from safetensors import deserialize
from safetensors.numpy import save

from shadow_reader.errors import SnapshotError
from shadow_reader.events.snapshots import Piece, RawTensor, SnapshotStore
from shadow_reader.store.snapshots.tensor_file import ITEM_BYTES
from tests.store.snapshot_disk import TestDisk
from tests.store.snapshot_samples import (
    digests,
    files_of,
    folder_of,
    names_in,
    opened,
    plain,
    restored,
    same,
    sample,
    spill,
)

HOLDER = """
import sys
from pathlib import Path
from tests.store.snapshot_samples import opened
opened(Path(sys.argv[1]))
print("open", flush=True)
sys.stdin.read()
"""


def test_a_snapshot_is_read_back_bit_for_bit_also_by_a_later_process(tmp_path: Path) -> None:
    root = tmp_path / "above" / "root"
    store: SnapshotStore = opened(root)
    assert store.find("s") is None
    assert not store.has_piece("s", "a-40")
    whole = sample("s")
    assert spill(store, whole) == ["a-40", "b-40"]  # type: ignore[arg-type]  # as the contract
    assert same(restored(store, "s"), whole)  # type: ignore[arg-type]  # as the contract
    store.close()
    store.close()
    later = opened(root)
    assert same(restored(later, "s"), whole)
    later.close()


def test_modes_and_names(tmp_path: Path) -> None:
    root = tmp_path / "root"
    before = os.umask(0)
    try:
        store = opened(root)
        spill(store, sample("../secret", "a"))
    finally:
        os.umask(before)
    folder = folder_of(root, "../secret")
    assert names_in(root) == [folder.name, "snapshots.lock"]
    assert names_in(folder) == ["a-40.safetensors", "head.safetensors"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in (root, folder)] == [0o700, 0o700]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    store.close()
    assert names_in(root) == [folder.name]


def test_against_safetensors_the_library_reads_every_type(tmp_path: Path) -> None:
    """Also 8-byte, 1-byte and empty tensors; each is aligned for its type."""
    store = opened(tmp_path)
    types = {
        f"t{n}": RawTensor(t, (3,), bytes(range(3 * ITEM_BYTES[t])))
        for n, t in enumerate(ITEM_BYTES)
    }
    piece = Piece("p", 0, 1, digests(types), sum(len(t.data) for t in types.values()))
    store.write_piece("s", piece, types)
    raw = (folder_of(tmp_path, "s") / "p.safetensors").read_bytes()
    found = {
        name: (t["dtype"], tuple(t["shape"]), bytes(t["data"]))
        for name, t in deserialize(raw)  # type: ignore[no-untyped-call]  # the library has no types
    }
    assert found == plain(types)
    length = int.from_bytes(raw[:8], "little")
    assert length % 8 == 0
    for tensor in types.values():
        assert raw.index(bytes(tensor.data)) % ITEM_BYTES[tensor.dtype] == 0
    store.close()


def test_views_of_any_kind_can_be_written_and_reading_gives_views_on_one_buffer(
    tmp_path: Path,
) -> None:
    store = opened(tmp_path)
    array = np.arange(12, dtype=np.uint32).reshape(3, 4)
    tensors = {
        "ids": RawTensor("U32", (3, 4), array.data),
        "scalar": RawTensor("F64", (), memoryview(bytes(8))),
    }
    piece = Piece("p", 0, 1, digests(tensors), 56)
    store.write_piece("s", piece, tensors)
    whole = sample("s", "")
    manifest = type(whole.manifest)(
        **{f: getattr(whole.manifest, f) for f in whole.manifest.__dataclass_fields__}
        | {"pieces": (piece,)}
    )
    store.write_head(manifest, whole.head)
    found = store.read_piece(manifest, piece)
    assert plain(found) == plain(tensors)
    views = [t.data for t in found.values()]
    assert all(isinstance(view, memoryview) for view in views)
    assert len({id(view.obj) for view in views if isinstance(view, memoryview)}) == 1
    odd = RawTensor("U32", (3, 4), array.T.data)
    with pytest.raises(SnapshotError, match="tensor ids: expected 48 bytes"):
        store.write_piece("s", Piece("q", 0, 1, {"ids": ""}, 48), {"ids": odd})
    store.close()


def test_a_second_spill_writes_what_is_new_and_drops_what_is_not_named(tmp_path: Path) -> None:
    disk = TestDisk(tmp_path, 1 << 20)
    store = opened(tmp_path, disk=disk)
    spill(store, sample("s", "ab", seq=1))
    kept = folder_of(tmp_path, "s") / "b-40.safetensors"
    before = kept.stat()
    second = sample("s", "bc", seq=2)
    assert spill(store, second) == ["c-40"]
    assert kept.stat() == before
    assert names_in(folder_of(tmp_path, "s")) == [
        "b-40.safetensors", "c-40.safetensors", "head.safetensors"
    ]  # fmt: skip
    assert same(restored(store, "s"), second)
    disk.steps.clear()
    for piece in second.manifest.pieces:
        store.write_piece("s", piece, second.pieces[piece.name])
    assert not [step for step in disk.steps if step.startswith(("create", "write", "rename"))]
    store.close()


def test_what_contradicts_itself_is_not_written(tmp_path: Path) -> None:
    store = opened(tmp_path)
    whole = sample("s", "ab")
    spill(store, whole)
    first = whole.manifest.pieces[0]
    tensors = whole.pieces["a-40"]
    wrong = {
        "another piece of that name": (first, sample("t", "a").pieces["a-40"]),
        "bytes": (Piece("n", 0, 1, first.digests, first.bytes + 1), tensors),
        "a tensor too many": (Piece("n", 0, 1, {}, 403), tensors),
        "a path": (Piece("../n", 0, 1, first.digests, first.bytes), tensors),
        "the head": (Piece("head", 0, 1, first.digests, first.bytes), tensors),
        "upper case": (Piece("N", 0, 1, first.digests, first.bytes), tensors),
        "too long": (Piece("n" * 129, 0, 1, first.digests, first.bytes), tensors),
        "dtype": (Piece("n", 0, 1, {"x": ""}, 1), {"x": RawTensor("F4", (2,), b"1")}),
        "surrogate": (Piece("n", 0, 1, {"x": "\ud800"}, 1), {"x": RawTensor("U8", (1,), b"1")}),
        "the table": (
            Piece("n", 0, 1, {"__metadata__": ""}, 1), {"__metadata__": RawTensor("U8", (1,), b"1")}
        ),
    }  # fmt: skip
    for what, (piece, given) in wrong.items():
        if what == "another piece of that name":
            piece = Piece("a-40", 0, 1, digests(given), first.bytes)
        with pytest.raises(SnapshotError):
            store.write_piece("s", piece, given)
    for session in ("", "\ud800"):
        with pytest.raises(SnapshotError):
            store.write_piece(session, Piece("n", 0, 1, digests(tensors), first.bytes), tensors)
    missing = sample("s", "abz", seq=2).manifest
    with pytest.raises(SnapshotError, match="z-40"):
        store.write_head(missing, whole.head)
    with pytest.raises(SnapshotError, match="missing tensors"):
        store.write_head(whole.manifest, {})
    assert same(restored(store, "s"), whole)
    assert len(files_of(tmp_path)) == 4
    store.close()


def test_a_manifest_is_of_one_head_and_its_pieces_only(tmp_path: Path) -> None:
    store = opened(tmp_path)
    old = sample("s", "ab", seq=1)
    spill(store, old)
    spill(store, sample("s", "bc", seq=2))
    with pytest.raises(SnapshotError, match="expected d1, found d2"):
        store.read_head(old.manifest)
    with pytest.raises(SnapshotError, match=r"a-40.*ENOENT"):
        store.read_piece(old.manifest, old.manifest.pieces[0])
    now = store.find("s")
    assert now is not None
    with pytest.raises(SnapshotError, match="piece: expected"):
        store.read_piece(now, old.manifest.pieces[0])
    store.close()


def test_an_abandoned_spill_leaves_what_was_there(tmp_path: Path) -> None:
    store = opened(tmp_path)
    old, new = sample("s", "ab"), sample("s", "cd", seq=2)
    for before in (None, old):
        if before is not None:
            spill(store, before)
        files = files_of(tmp_path)
        for piece in new.manifest.pieces:
            store.write_piece("s", piece, new.pieces[piece.name])
        assert len(files_of(tmp_path)) == len(files) + 2
        store.abandon("s")
        store.abandon("never")
        assert files_of(tmp_path) == files
        assert same(restored(store, "s"), before)
        assert store.stats().bytes == sum(files.values())
    store.close()


def test_a_folder_that_somebody_removed_is_made_again(tmp_path: Path) -> None:
    store = opened(tmp_path)
    whole = sample("s")
    spill(store, whole)
    folder = folder_of(tmp_path, "s")
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    with pytest.raises(SnapshotError, match="ENOENT"):
        store.find("s")
    assert store.find("s") is None
    assert store.stats().bytes == len(str(os.getpid()))
    spill(store, whole)
    assert same(restored(store, "s"), whole)
    store.close()


def test_one_process_has_the_folder(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with pytest.raises(SnapshotError, match=f"in use by process {os.getpid()}") as caught:
        opened(tmp_path)
    assert caught.value.details == {"path": str(tmp_path), "pid": os.getpid()}
    store.close()
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == b"open\n"
        with pytest.raises(SnapshotError, match=f"in use by process {process.pid}"):
            opened(tmp_path)
        process.kill()
    opened(tmp_path).close()


def test_a_root_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(SnapshotError, match="opening snapshots"):
            opened(root)


def test_large_pieces_are_written_without_a_copy_and_read_with_one_buffer(tmp_path: Path) -> None:
    size = 32 << 20
    store = opened(tmp_path, cap=2 * size)
    data = bytes(size)
    tensors = {"rows": RawTensor("BF16", (size // 2,), data)}
    piece = Piece("big", 0, 16, {"rows": "d"}, size)
    whole = sample("s", "")
    fields = {f: getattr(whole.manifest, f) for f in whole.manifest.__dataclass_fields__}
    manifest = type(whole.manifest)(**fields | {"pieces": (piece,)})
    tracemalloc.start()
    try:
        store.write_piece("s", piece, tensors)
        store.write_head(manifest, whole.head)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        found = store.read_piece(manifest, piece)
        assert tracemalloc.get_traced_memory()[1] < size + (1 << 20)
    finally:
        tracemalloc.stop()
    assert found["rows"].data == data
    store.close()


def test_against_safetensors_a_file_of_the_library_itself_is_refused(tmp_path: Path) -> None:
    """It is a good file, but it says nothing of the layout."""
    store = opened(tmp_path)
    spill(store, sample("s", "a"))
    raw = save({"rows": np.zeros(3, np.uint8)}, metadata={"layout": "0"})
    (folder_of(tmp_path, "s") / "head.safetensors").write_bytes(raw)
    with pytest.raises(SnapshotError, match="layout version: expected 1, found 0"):
        store.find("s")
    store.close()

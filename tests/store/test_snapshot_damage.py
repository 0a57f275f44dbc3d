"""Every region of every file of a snapshot, damaged in every way: refused whole, and named.

Flipped bytes of tensors are the one thing that the store does not see: the digests do.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import orjson
import pytest

from shadow_reader.errors import SnapshotError
from shadow_reader.store.snapshots.store import FileSnapshots
from tests.store.snapshot_samples import (
    digests,
    folder_of,
    opened,
    restored,
    same,
    sample,
    spill,
)

WHOLE = sample("s", "ab")
BESIDE = sample("beside", "ab")
FILES = ("head.safetensors", "a-40.safetensors", "b-40.safetensors")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with the snapshots of two sessions, closed."""
    root = tmp_path / "root"
    store = opened(root)
    spill(store, WHOLE)
    spill(store, BESIDE)
    store.close()
    return root


def split(file: Path) -> tuple[bytes, bytes]:
    """Header and data."""
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return raw[8 : 8 + length], raw[8 + length :]


def join(header: bytes, data: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + data


def refusal(store: FileSnapshots, session: str = "s") -> SnapshotError | None:
    """Why the session's snapshot is refused, if it is."""
    try:
        restored(store, session)
    except SnapshotError as error:
        return error
    return None


def check_refused(root: Path, file: str) -> SnapshotError:
    """Refused with the file's name, in a store that was opened after the damage; others are not."""
    store = opened(root)
    try:
        error = refusal(store)
        assert error is not None, "not refused"
        assert error.code == "snapshot_refused"
        assert error.details["path"] == str(folder_of(root, "s") / file)
        assert error.details.keys() >= {"path", "found"}
        assert same(restored(store, "beside"), BESIDE)
        assert store.erase("s")
        spill(store, WHOLE)
        assert same(restored(store, "s"), WHOLE)
    finally:
        store.close()
    return error


@pytest.mark.parametrize("name", FILES[:2])
def test_every_byte_of_the_length_and_the_header(root: Path, name: str) -> None:
    file = folder_of(root, "s") / name
    raw = file.read_bytes()
    header_end = 8 + len(split(file)[0])
    store = opened(root)
    for at in range(header_end):
        bits = (1, 0x20, 0x80) if at < 8 else (1 << at % 7,)
        for bit in bits:
            file.write_bytes(raw[:at] + bytes([raw[at] ^ bit]) + raw[at + 1 :])
            error = refusal(store)
            assert error is not None, (at, bit)
            assert error.details["path"] == str(file), (at, bit)
    file.write_bytes(raw)
    assert same(restored(store, "s"), WHOLE)
    store.close()


@pytest.mark.parametrize("name", FILES)
def test_every_length_but_the_right_one(root: Path, name: str) -> None:
    file = folder_of(root, "s") / name
    raw = file.read_bytes()
    header_end = 8 + len(split(file)[0])
    store = opened(root)
    lengths = {*range(0, header_end, 7), *range(header_end - 2, len(raw), 5), len(raw) - 1}
    for length in (*lengths, len(raw) + 1, len(raw) + 8, len(raw) + 4096):
        file.write_bytes(raw[:length].ljust(length, b"\0"))
        error = refusal(store)
        assert error is not None, length
        assert error.details["path"] == str(file), length
    store.close()
    check_refused(root, name)


@pytest.mark.parametrize("name", FILES)
def test_flipped_data_differs_from_its_digest(root: Path, name: str) -> None:
    file = folder_of(root, "s") / name
    header, data = split(file)
    store = opened(root)
    manifest = store.find("s")
    assert manifest is not None
    for at in (0, len(data) // 2, len(data) - 1):
        file.write_bytes(join(header, data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]))
        assert store.find("s") == manifest
        found = digests(store.read_head(manifest))
        for piece in manifest.pieces:
            found |= {
                f"{piece.name} {k}": v
                for k, v in digests(store.read_piece(manifest, piece)).items()
            }
        expected = dict(manifest.head_digests)
        for piece in manifest.pieces:
            expected |= {f"{piece.name} {k}": v for k, v in piece.digests.items()}
        differ = [key for key in expected if expected[key] != found[key]]
        assert len(differ) == 1
    store.close()


@pytest.mark.parametrize("name", FILES[1:])
def test_a_missing_piece(root: Path, name: str) -> None:
    (folder_of(root, "s") / name).unlink()
    assert "ENOENT" in check_refused(root, name).message


def test_a_missing_head_is_no_snapshot_after_a_start(root: Path) -> None:
    store = opened(root)
    (folder_of(root, "s") / "head.safetensors").unlink()
    error = refusal(store)
    assert error is not None
    assert error.details["found"] == "ENOENT"
    assert store.find("s") is None
    store.close()
    store = opened(root)
    assert store.find("s") is None
    assert not folder_of(root, "s").exists()
    assert same(restored(store, "beside"), BESIDE)
    store.close()


@pytest.mark.parametrize("name", FILES)
def test_files_of_another_session(root: Path, name: str) -> None:
    shutil.copy(folder_of(root, "beside") / name, folder_of(root, "s") / name)
    error = check_refused(root, name)
    assert error.details["expected"] == "s"
    assert error.details["found"] == "beside"


def test_a_whole_folder_of_another_session(root: Path) -> None:
    shutil.rmtree(folder_of(root, "s"))
    shutil.copytree(folder_of(root, "beside"), folder_of(root, "s"))
    assert "session: expected s, found beside" in check_refused(root, "head.safetensors").message


def test_two_pieces_swapped(root: Path) -> None:
    one, two = (folder_of(root, "s") / name for name in FILES[1:])
    one.rename(one.with_name("aside"))
    two.rename(one)
    one.with_name("aside").rename(two)
    assert "piece" in check_refused(root, FILES[1]).message


def test_a_piece_of_an_older_snapshot_under_the_same_name(root: Path) -> None:
    file = folder_of(root, "s") / FILES[1]
    store = opened(root)
    store.erase("s")
    assert store.find("s") is None
    longer = sample("s", "ab", rows=41)
    spill(store, longer)
    shutil.copy(folder_of(root, "s") / "a-41.safetensors", root / "aside")
    store.erase("s")
    spill(store, WHOLE)
    store.close()
    shutil.move(root / "aside", file)
    assert "a-41" in check_refused(root, FILES[1]).message


def sealed(header: dict[str, Any]) -> bytes:
    """The header as somebody writes it who knows the seal."""
    metadata = header.pop("__metadata__")
    metadata["blake2b"] = blake2b(
        orjson.dumps([metadata.get("layout"), metadata.get("about"), header]), digest_size=32
    ).hexdigest()
    text = orjson.dumps({"__metadata__": metadata, **header})
    return text + b" " * (-len(text) % 8)


Change = Callable[[dict[str, Any]], object]


def with_about(change: Change) -> Change:
    """A change of what the file says of itself."""

    def changed(header: dict[str, Any]) -> None:
        about = json.loads(header["__metadata__"]["about"])
        change(about)
        header["__metadata__"]["about"] = orjson.dumps(about).decode()

    return changed


def in_manifest(**fields: Any) -> Change:
    return with_about(lambda about: about["manifest"].update(fields))


def in_piece(**fields: Any) -> Change:
    return with_about(lambda about: about["manifest"]["pieces"][0].update(fields))


CHANGES: dict[str, tuple[Change, str]] = {
    "layout": (lambda h: h["__metadata__"].update(layout="2"), "layout version: expected 1"),
    "no layout": (lambda h: h["__metadata__"].pop("layout"), "layout version: expected 1"),
    "more metadata": (lambda h: h["__metadata__"].update(more=""), "metadata"),
    "no about": (lambda h: h["__metadata__"].pop("about"), "metadata"),
    "about": (lambda h: h["__metadata__"].update(about="{"), "manifest: expected JSON"),
    "about list": (lambda h: h["__metadata__"].update(about="[]"), "head: expected an object"),
    "written_at": (with_about(lambda a: a.update(written_at="1")), "written_at"),
    "no written_at": (with_about(lambda a: a.pop("written_at")), "a field written_at"),
    "more about": (with_about(lambda a: a.update(more=1)), "expected no more"),
    "more manifest": (in_manifest(more=1), "manifest: expected no more"),
    "session": (in_manifest(session="t"), "session: expected s, found t"),
    "no session": (in_manifest(session=""), "session"),
    "opened_at": (in_manifest(opened_at=True), "opened_at"),
    "engine": (in_manifest(engine={"a": 1.5}), "engine"),
    "engine list": (in_manifest(engine=[]), "engine"),
    "position": (in_manifest(position=-1), "position: expected count, found -1"),
    "position 1.0": (in_manifest(position=1.0), "position"),
    "seq": (in_manifest(seq=2**63), "seq"),
    "ids_hash": (in_manifest(ids_hash=None), "ids_hash"),
    "digest": (in_manifest(digest=5), "digest"),
    "checkpoints": (in_manifest(checkpoints=[[1]]), "checkpoints"),
    "checkpoint": (in_manifest(checkpoints=[["1", "x"]]), "checkpoints"),
    "pieces": (in_manifest(pieces={}), "pieces"),
    "piece": (in_manifest(pieces=["a"]), "piece: expected an object"),
    "piece twice": (
        with_about(lambda a: a["manifest"]["pieces"].append(a["manifest"]["pieces"][0])),
        "each name once",
    ),
    "head_digests": (in_manifest(head_digests={"conv": 1}), "head_digests"),
    "missing tensor": (
        with_about(lambda a: a["manifest"]["head_digests"].update(more="d")),
        "missing tensors",
    ),
    "extra tensor": (
        with_about(lambda a: a["manifest"]["head_digests"].pop("conv")),
        "extra tensors",
    ),
    "piece more": (in_piece(more=1), "piece: expected no more"),
    "piece name": (in_piece(name="../a"), "piece, name"),
    "piece head": (in_piece(name="head"), "piece, name"),
    "piece start": (in_piece(start=300), "stop: expected 300, found 98"),
    "piece digests": (in_piece(digests={}), "piece: expected"),
    "piece bytes": (in_piece(bytes=404), "piece: expected"),
    "piece missing": (in_piece(name="c-40"), "ENOENT"),
    "dtype": (lambda h: h["conv"].update(dtype="F31"), "tensor conv, its dtype"),
    "dtype none": (lambda h: h["conv"].update(dtype=None), "tensor conv, its dtype"),
    "dtype wide": (lambda h: h["conv"].update(dtype="F32"), "tensor conv: expected 4 bytes"),
    "shape": (lambda h: h["conv"].update(shape=[2]), "tensor conv: expected 4 bytes"),
    "shape minus": (lambda h: h["conv"].update(shape=[-1, -1]), "tensor conv: expected counts"),
    "shape float": (lambda h: h["conv"].update(shape=[1.0]), "tensor conv: expected counts"),
    "spec more": (lambda h: h["conv"].update(more=1), "tensor conv"),
    "spec less": (lambda h: h["conv"].pop("shape"), "tensor conv"),
    "gap": (lambda h: h["conv"].update(data_offsets=[26, 28]), "its start: expected 24, found 26"),
    "overlap": (lambda h: h["conv"].update(data_offsets=[22, 24]), "its start: expected 24"),
    "backwards": (lambda h: h["conv"].update(data_offsets=[26, 24]), "tensor conv: expected 2"),
    "one offset": (lambda h: h["conv"].update(data_offsets=[24]), "tensor conv: expected counts"),
    "no tensor": (lambda h: h.pop("conv"), "data: expected 24 bytes, found 26"),
    "first tensor gone": (lambda h: h.pop("recurrent"), "its start: expected 0"),
    "a tensor more": (
        lambda h: h.update(more={"dtype": "U8", "shape": [0], "data_offsets": [26, 26]}),
        "extra tensors",
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_head_that_is_sealed_and_wrong(root: Path, what: str) -> None:
    file = folder_of(root, "s") / "head.safetensors"
    header, data = split(file)
    change, message = CHANGES[what]
    table = json.loads(header)
    change(table)
    file.write_bytes(join(sealed(table), data))
    names = {
        "piece digests": FILES[1],
        "piece bytes": FILES[1],
        "piece missing": "c-40.safetensors",
    }
    assert message in check_refused(root, names.get(what, FILES[0])).message


@pytest.mark.parametrize("field", list(sample("s").manifest.__dataclass_fields__))
def test_a_manifest_without_a_field(root: Path, field: str) -> None:
    file = folder_of(root, "s") / "head.safetensors"
    header, data = split(file)
    table = json.loads(header)
    with_about(lambda about: about["manifest"].pop(field))(table)
    file.write_bytes(join(sealed(table), data))
    assert f"expected a field {field}" in check_refused(root, FILES[0]).message


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "header",
    [b"", b"{}", b"[]", b"null", b"\xff" * 8, b'{"__metadata__":5}', b'{"__metadata__":{}}'],
)
def test_a_header_that_is_none(root: Path, name: str, header: bytes) -> None:
    file = folder_of(root, "s") / name
    file.write_bytes(join(header, split(file)[1]))
    check_refused(root, name)


def test_a_header_that_says_the_same_in_other_bytes(root: Path) -> None:
    file = folder_of(root, "s") / "head.safetensors"
    header, data = split(file)
    for other in (header + b" " * 8, header.replace(b'":{', b'": {', 1), header.rstrip()):
        if other != header:
            file.write_bytes(join(other, data))
            store = opened(root)
            assert refusal(store) is not None
            store.close()
    check_refused(root, FILES[0])


def test_a_damaged_piece_is_not_built_on(root: Path) -> None:
    file = folder_of(root, "s") / FILES[1]
    raw = file.read_bytes()
    file.write_bytes(raw[:-1])
    store = opened(root)
    assert not store.has_piece("s", "a-40")
    assert store.has_piece("s", "b-40")
    assert spill(store, WHOLE) == ["a-40"]
    assert same(restored(store, "s"), WHOLE)
    assert file.read_bytes() == raw
    store.close()


def test_a_refused_head_goes_when_it_is_too_old_or_in_the_way(root: Path) -> None:
    file = folder_of(root, "s") / "head.safetensors"
    file.write_bytes(b"garbage")
    store = opened(root)
    assert store.stats().sessions == 2
    assert store.sweep() == ()
    assert refusal(store) is not None
    spill(store, WHOLE)  # what it named is found again, and the new head replaces it
    assert same(restored(store, "s"), WHOLE)
    store.close()

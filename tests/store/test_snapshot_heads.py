"""Heads whose bytes are whole and whose words are wrong: refused whole, and named."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.store.damaging import FILES, check_refused, join, refusal, split
from tests.store.snapshot_samples import folder_of, opened, sample


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

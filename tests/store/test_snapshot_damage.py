"""Every region of every file of a snapshot, damaged in every way: refused whole, and named.

Flipped bytes of tensors are the one thing that the store does not see: the digests do.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.store.damaging import BESIDE, FILES, WHOLE, check_refused, join, refusal, split
from tests.store.snapshot_samples import digests, folder_of, opened, restored, same, sample, spill


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

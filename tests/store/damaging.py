"""Snapshots to damage, and the check that what was damaged is refused whole and named."""

from __future__ import annotations

from pathlib import Path

from shadow_reader.errors import SnapshotError
from shadow_reader.store.snapshots.store import FileSnapshots
from tests.store.snapshot_samples import folder_of, opened, restored, same, sample, spill

WHOLE = sample("s", "ab")


BESIDE = sample("beside", "ab")


FILES = ("head.safetensors", "a-40.safetensors", "b-40.safetensors")


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

"""Spills on a real full disk, on a small file system of its own; says what happened as JSON.

python -m tests.store.snapshot_full_child FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from shadow_reader.errors import SnapshotError
from tests.store.disk_child import fill
from tests.store.snapshot_samples import files_of, names_in, opened, restored, same, sample, spill


def main(folder: Path) -> dict[str, object]:
    """Open on a full disk, spill until it is full, make room, spill again."""
    report: dict[str, object] = {}
    root = folder / "snapshots"
    filler = fill(folder)
    try:
        opened(root).close()
    except SnapshotError as error:
        report["opening"] = [type(error).__name__, error.message]
    filler.unlink()
    store = opened(root, cap=1 << 40)
    old, new = sample("s"), sample("s", "cde", rows=9_000, seq=2)
    spill(store, old)
    files = files_of(root)
    filler = fill(folder)
    with filler.open("r+b") as file:
        file.truncate(filler.stat().st_size - 150_000)  # room for a piece and a half
    try:
        spill(store, new)
    except SnapshotError as error:
        report["spilling"] = [type(error).__name__, error.message]
    report["kept"] = same(restored(store, "s"), old) and files_of(root) == files
    filler.unlink()
    spill(store, new)
    report["goes on"] = same(restored(store, "s"), new)
    fill(folder)
    report["erased"] = store.erase("s")
    store.close()
    store = opened(root)
    report["files"] = names_in(root)
    store.close()
    return report


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))  # noqa: T201  # its only output

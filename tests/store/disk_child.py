"""A real full disk: run on a small file system of its own, says what happened as JSON.

python -m tests.store.disk_child FOLDER
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from shadow_reader.errors import JournalError
from shadow_reader.store.journal import SqliteJournal
from tests.store.drafts import files_in, output, seqs


def fill(folder: Path) -> Path:
    """Take all room that is left."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 12))
        except OSError:
            os.fsync(file.fileno())
    return path


def outcome(error: JournalError) -> list[str]:
    """The error, for the report."""
    return [type(error).__name__, error.message]


async def main(folder: Path) -> dict[str, object]:
    """Open on a full disk; fill the disk under an open journal; make room again."""
    report: dict[str, object] = {}
    path = folder / "shadow.db"
    filler = fill(folder)
    try:
        await SqliteJournal.open(path)
    except JournalError as error:
        report["creating"] = outcome(error)
    report["files after creating"] = files_in(folder)
    filler.unlink()

    journal = await SqliteJournal.open(path)
    await journal.submit([output("a", 0)])
    filler = fill(folder)
    appended = 1
    try:
        while True:
            await journal.submit([output("a", appended, n=2000)])
            appended += 1
    except JournalError as error:
        report["appending"] = outcome(error)
    behind = [journal.submit([output("a", appended, n=9000)]) for _ in range(3)]
    report["behind"] = [
        type(error).__name__ for error in await asyncio.gather(*behind, return_exceptions=True)
    ]
    report["kept"] = await seqs(journal) == list(range(1, appended + 1))
    filler.unlink()
    await journal.submit([output("a", appended)])
    report["goes on"] = await seqs(journal) == list(range(1, appended + 2))
    await journal.close()
    journal = await SqliteJournal.open(path)
    report["reopened"] = await seqs(journal) == list(range(1, appended + 2))
    await journal.close()
    report["files"] = files_in(folder)
    return report


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(Path(sys.argv[1])))))  # noqa: T201  # its only output

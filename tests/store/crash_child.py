"""A process that writes a journal under load until it is killed; says what was acknowledged.

    python -m tests.store.crash_child PATH SEED

Each line of its output is one acknowledged submission: the session and the offsets of its events,
or the session and ``erased``. A line is written only when the submission's future is done.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path

from shadow_reader.store import wal
from shadow_reader.store.journal import SqliteJournal
from tests.store.drafts import erased, output

WRITERS = 6


def say(line: str) -> None:
    """Write a whole line at once; what the pipe holds outlives this process."""
    os.write(1, f"{line}\n".encode())


async def write(journal: SqliteJournal, session: str, seed: int) -> None:
    """Append to a session in random batches, some of them large, and erase it now and then."""
    choices = random.Random(seed)
    offset = 0
    while True:
        await journal.room()
        if offset > 50 and choices.random() < 0.03:
            await journal.erase(erased(session))
            say(f"{session} erased")
            continue
        count = choices.choice([1, 1, 1, 3, 40])
        ids = choices.choice([1, 4, 900])
        drafts = [
            output(session, offset + n, turn=f"turn {offset // 100}", n=ids) for n in range(count)
        ]
        future = journal.submit(drafts)
        if choices.random() < 0.5:
            await asyncio.sleep(0)
        await future
        say(f"{session} {' '.join(str(offset + n) for n in range(count))}")
        offset += count


async def main(path: Path, seed: int) -> None:
    """Write until killed."""
    wal.LOG_BYTES = 256 << 10  # type: ignore[misc]  # so that the log is copied all the time
    journal = await SqliteJournal.open(path, pending_limit=64)
    async with asyncio.TaskGroup() as group:
        for writer in range(WRITERS):
            group.create_task(write(journal, f"{seed}-{writer}", seed * 100 + writer))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))

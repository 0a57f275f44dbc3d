"""Erased means gone: the bytes are in neither the database nor its log when the promise is kept.

The files are looked at by another process: opening and closing a database's file takes away the
locks that SQLite holds on it in this one.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from shadow_reader.errors import JournalError
from shadow_reader.events import types as t
from shadow_reader.events.ids import Ids
from shadow_reader.store import reclaim
from shadow_reader.store.journal import SqliteJournal
from shadow_reader.store.reader import JournalReader
from tests.store.drafts import entry, erased, everything, output, seqs

LOOK = """
import sys
from pathlib import Path
content = b"".join(Path(name).read_bytes() for name in sys.argv[1:] if Path(name).exists())
for line in sys.stdin.buffer:
    print(int(bytes.fromhex(line.decode()) in content))
"""


def found(path: Path, marks: list[bytes]) -> list[bytes]:
    """Which of the marks are somewhere in the journal's files."""
    done = subprocess.run(
        [sys.executable, "-c", LOOK, *(f"{path}{end}" for end in ("", "-wal", "-shm"))],
        input="".join(f"{mark.hex()}\n" for mark in marks).encode(),
        stdout=subprocess.PIPE,
        check=True,
    )
    return [mark for mark, line in zip(marks, done.stdout.split(), strict=True) if line == b"1"]


class Content:
    """Random events of a session, and bytes that give each of them away."""

    def __init__(self, seed: int) -> None:
        self._choices = random.Random(seed)
        self.marks: dict[str, list[bytes]] = {}

    def draft(self, session: str) -> t.Draft:
        """One event of the session: a delta, a prompt or a question, small or large."""
        choices = self._choices
        count = choices.choice([4, 6, 40, 1500])
        ids = np.array([choices.getrandbits(32) for _ in range(count)], dtype=np.uint32)
        word = f"word-{choices.getrandbits(64):016x}"
        turn = f"turn-{choices.getrandbits(64):016x}"
        marks = self.marks.setdefault(session, [])
        marks += [ids[:4].tobytes(), ids[-4:].tobytes(), word.encode(), turn.encode()]
        kind = choices.choice(["prompt", "question"])
        event: t.Prompt | t.Question = (
            t.Prompt(0, Ids.of(ids), word)
            if kind == "prompt"
            else t.Question(word, "free", 0, Ids.of(ids), (word, "ä"))
        )
        return t.Draft(1.0, session, turn, event)


@pytest.mark.parametrize(("seed", "least_dead"), [(1, 1 << 40), (2, 100_000)])
async def test_what_was_erased_is_nowhere_in_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, least_dead: int
) -> None:
    monkeypatch.setattr(reclaim, "LEAST_DEAD_BYTES", least_dead)
    path = tmp_path / "shadow.db"
    choices, content = random.Random(seed), Content(seed)
    names = [f"s{n}" for n in range(10)]
    journal = await SqliteJournal.open(path)
    for _ in range(4):
        for _ in range(5):  # sessions' rows lie between each other's
            await journal.submit([content.draft(choices.choice(names)) for _ in range(12)])
        for name in choices.sample(names, 2):
            marks = content.marks.pop(name, [])
            assert set(found(path, marks)) == set(marks)
            await journal.erase(erased(name))
            assert found(path, marks) == []
    kept = [mark for marks in content.marks.values() for mark in marks]
    assert set(found(path, kept)) == set(kept)
    for name in choices.sample(names, len(names)):
        marks = content.marks.pop(name, [])
        await journal.erase(erased(name))
        assert found(path, marks) == []
    await journal.close()


async def test_erasing_while_readers_stream(tmp_path: Path) -> None:
    path = tmp_path / "shadow.db"
    journal = await SqliteJournal.open(path)
    content = Content(3)
    for _ in range(10):
        await journal.submit([content.draft(name) for name in "ab" for _ in range(30)])
    reading = True

    async def stream() -> None:
        while reading:
            assert await everything(journal)

    streams = [asyncio.create_task(stream()) for _ in range(2)]
    await asyncio.sleep(0)
    await journal.erase(erased("a"))
    gone = found(path, content.marks["a"])
    reading = False
    await asyncio.gather(*streams)
    assert gone == []
    assert {e.session for e in (await everything(journal))[:-1]} == {"b"}
    await journal.close()


async def test_another_program_s_old_transaction_delays_the_promise_and_nothing_else(
    tmp_path: Path,
) -> None:
    path = tmp_path / "shadow.db"
    journal = await SqliteJournal.open(path)
    content = Content(4)
    await journal.submit([content.draft("a") for _ in range(5)])
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN")
        assert other.execute("SELECT count(*) FROM events").fetchone() == (5,)
        erasing = journal.erase(erased("a"))
        for number in range(3):
            assert list(await journal.submit([output("b", number)])) == [7 + number]
        assert await seqs(journal, "a") == [6]
        assert not erasing.done()
        assert found(path, content.marks["a"])
        other.execute("ROLLBACK")
        assert [e.seq for e in await asyncio.wait_for(erasing, 30)] == [6]
        assert found(path, content.marks["a"]) == []
    await journal.close()


async def test_closing_while_another_program_still_reads_breaks_the_promise_aloud(
    tmp_path: Path,
) -> None:
    path = tmp_path / "shadow.db"
    journal = await SqliteJournal.open(path)
    content = Content(5)
    await journal.submit([content.draft("a") for _ in range(5)])
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN")
        assert other.execute("SELECT count(*) FROM events").fetchone() == (5,)
        erasing = journal.erase(erased("a"))
        await journal.close()
        with pytest.raises(JournalError, match="another program still reads the old log"):
            await erasing
        other.execute("ROLLBACK")
    await (await SqliteJournal.open(path)).close()
    assert found(path, content.marks["a"]) == []


async def test_dead_rows_room_comes_back_and_nothing_else_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reclaim, "LEAST_DEAD_BYTES", 200_000)
    path = tmp_path / "shadow.db"
    journal = await SqliteJournal.open(path)
    kept = [output("kept", n, turn=f"t{n // 10}", n=30) for n in range(100)]
    await journal.submit(kept)
    sizes = []
    for round_ in range(30):
        await journal.submit([output("gone", n, turn=f"t{n // 10}", n=300) for n in range(100)])
        (entry_,) = await journal.erase(erased("gone"))
        assert isinstance(entry_.event, t.SessionErased)
        assert entry_.event.event_count == 100 + (round_ > 0)
        sizes.append(path.stat().st_size)
    assert max(sizes) < 1_500_000  # of 3,700,000 written
    expected = [entry(draft, n + 1) for n, draft in enumerate(kept)]
    assert [e async for e in journal.entries(session="kept")] == expected
    assert [e async for e in journal.entries(session="kept", turn="t3")] == expected[30:40]
    assert [e async for e in journal.entries(kinds=["output"])] == expected
    last = 100 + 30 * 101
    assert await seqs(journal) == [*range(1, 101), last]
    (fresh,) = await journal.submit([output("kept", 100, turn="t9")])
    assert fresh == last + 1
    await journal.close()
    async with await JournalReader.open(path) as reader:
        assert await seqs(reader) == [*range(1, 101), last, last + 1]
        assert [e.seq async for e in reader.entries(turn="t9")] == [*range(91, 101), last + 1]
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert db.execute("SELECT count(*) FROM journal").fetchone() == (102,)


async def test_room_that_cannot_come_back_now_does_not_break_the_erasure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(db: sqlite3.Connection, table: str, order: str) -> None:
        db.execute(f"DROP TABLE {table}")
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(reclaim, "LEAST_DEAD_BYTES", 1000)
    path = tmp_path / "shadow.db"
    journal = await SqliteJournal.open(path)
    content = Content(6)
    await journal.submit([content.draft("a") for _ in range(30)])
    await journal.submit([output("b", 0)])
    with monkeypatch.context() as patched:
        patched.setattr(reclaim, "_rewrite", broken)
        await journal.erase(erased("a"))
    assert found(path, content.marks["a"]) == []
    assert await seqs(journal) == [31, 32]
    await journal.submit([content.draft("c") for _ in range(3)])
    await journal.erase(erased("c"))
    assert await seqs(journal) == [31, 32, 36]
    await journal.close()

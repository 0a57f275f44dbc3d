"""Law 1: what was acknowledged survives ``kill -9``, once, in order, and nothing half."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

from shadow_reader.events import types as t
from shadow_reader.store.journal import SqliteJournal
from tests.store.crash_child import WRITERS
from tests.store.drafts import everything


def killed_after(path: Path, seed: int, lines: int) -> list[list[str]]:
    """Let a child write until it said so many lines; what it had said when it was dead."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.store.crash_child", str(path), str(seed)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert child.stdout is not None
    with child, child.stdout as said:
        begun = [said.readline() for _ in range(lines)]
        child.kill()
        rest = said.read()
    assert child.returncode == -9
    return [line.decode().split() for line in (*begun, *rest.splitlines(keepends=True))]


def outcomes(lines: list[list[str]]) -> list[tuple[bool, list[int]]]:
    """What may be left of a session that said these lines: (an erased entry?, offsets).

    Its writer does one thing at a time, so beyond what it said there is at most one submission
    that was committed when the kill came before the line: whole, and right behind the others.
    """
    erased = ["erased"] in lines
    if erased:
        last = len(lines) - 1 - lines[::-1].index(["erased"])
        left, before = lines[last + 1 :], lines[:last]
    else:
        left, before = lines, []
    offsets = [int(offset) for line in left for offset in line]
    begun = sum(len(line) for line in before if line != ["erased"])
    goes_on = begun + len(offsets)
    assert offsets == list(range(begun, goes_on))
    batches = [list(range(goes_on, goes_on + count)) for count in (0, 1, 3, 40)]
    return [(True, []), *((erased, offsets + batch) for batch in batches)]


def found(entries: list[t.Entry], session: str) -> tuple[bool, list[int]]:
    """What is left of the session: (an erased entry?, offsets)."""
    events = [e.event for e in entries if e.session == session]
    erased = bool(events) and isinstance(events[0], t.SessionErased)
    outputs = [event for event in events if isinstance(event, t.Output)]
    assert len(outputs) == len(events) - erased
    assert all(output.ids[0] == output.offset for output in outputs)
    return erased, [output.offset for output in outputs]


async def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "shadow.db"
    choices = random.Random(9)
    said: list[list[str]] = []
    sessions: set[str] = set()
    for seed in range(3):
        said += killed_after(path, seed, choices.randrange(100, 400))
        sessions |= {f"{seed}-{writer}" for writer in range(WRITERS)}
        journal = await SqliteJournal.open(path)
        entries = await everything(journal)
        assert [e.seq for e in entries] == sorted({e.seq for e in entries})
        assert journal.stats().last_seq == entries[-1].seq
        for session in sessions:
            mine = [line[1:] for line in said if line[0] == session]
            assert found(entries, session) in outcomes(mine)
        rows = {row.session: row for row in await journal.sessions()}
        for session in sessions & rows.keys():
            kept = [e async for e in journal.entries(session=session)]
            assert (rows[session].events, rows[session].last_seq) == (len(kept), kept[-1].seq)
        await journal.close()

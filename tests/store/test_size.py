"""What a session costs on the disk: its ids once, and a small constant an event."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from shadow_reader.events import types as t
from shadow_reader.events.ids import ID_BYTES, Ids
from shadow_reader.store.journal import SqliteJournal

EVENT_BYTES = 72
"""A delta's row, its data, and its place in two indexes."""


@pytest.mark.parametrize("delta_ids", [1, 4, 16])
async def test_a_session_of_sixty_turns(tmp_path: Path, delta_ids: int) -> None:
    path = tmp_path / "shadow.db"
    choices = random.Random(7)
    journal = await SqliteJournal.open(path)
    session, at = f"{choices.getrandbits(128):032x}", 1.7e9
    known = ids = events = 0
    for _ in range(60):
        turn = f"{choices.getrandbits(128):032x}"
        new = choices.randrange(200, 3000)
        out: list[t.Event] = [t.Prompt(known, Ids.of(choices.choices(range(248_320), k=new)))]
        produced = choices.randrange(50, 400) // delta_ids * delta_ids
        for offset in range(0, produced, delta_ids):
            delta = Ids.of(choices.choices(range(248_320), k=delta_ids))
            out.append(t.Output(offset, delta))
        out += [t.TurnEnded("stop"), t.Read(0, 512, "idle", 12.625)]
        await journal.submit([t.Draft(at := at + 0.0371, session, turn, e) for e in out])
        known += new + produced
        ids += new + produced
        events += len(out)
    await journal.close()
    size = path.stat().st_size
    assert size <= 3 * ids * ID_BYTES
    assert size <= 1.1 * ids * ID_BYTES + EVENT_BYTES * events + 16 * 4096

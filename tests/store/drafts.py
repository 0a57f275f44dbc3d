"""Short ways to say drafts, and to collect what a journal and its folder hold."""

from __future__ import annotations

from pathlib import Path

from shadow_reader.events import types as t
from shadow_reader.events.ids import Ids
from shadow_reader.events.journal import Journal
from shadow_reader.store.reader import JournalReader


def output(
    session: str, offset: int = 0, *, turn: str = "t", at: float = 1.0, n: int = 1
) -> t.Draft:
    """An output delta of ``n`` ids that count up from its offset."""
    return t.Draft(at, session, turn, t.Output(offset, Ids.of(range(offset, offset + n))))


def opened(session: str, at: float = 1.0) -> t.Draft:
    """The session's first event."""
    return t.Draft(at, session, "", t.SessionOpened())


def erased(session: str, at: float = 9.0) -> t.Draft:
    """The draft that takes an erased session's place."""
    return t.Draft(at, session, "", t.SessionErased(0, 0))


def stopped(at: float = 1.0) -> t.Draft:
    """An event of the engine's."""
    return t.Draft(at, "", "", t.EngineStopped("closed"))


def entry(draft: t.Draft, seq: int) -> t.Entry:
    """The draft, committed."""
    return t.Entry(draft.at, draft.session, draft.turn, draft.event, seq)


async def everything(journal: Journal | JournalReader) -> list[t.Entry]:
    """All entries, in order."""
    return [entry async for entry in journal.entries()]


async def seqs(journal: Journal | JournalReader, session: str | None = None) -> list[int]:
    """All seqs, or a session's."""
    return [entry.seq async for entry in journal.entries(session=session)]


def files_in(folder: Path) -> list[str]:
    """Names of the files in a folder."""
    return sorted(path.name for path in folder.iterdir())

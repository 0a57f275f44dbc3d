"""A journal's file read from end to end: every entry decoded, every session folded."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from shadow_reader.errors import JournalFormatError
from shadow_reader.events import types as t
from shadow_reader.events.codec import kind_of
from shadow_reader.events.fold import fold
from shadow_reader.events.view import SessionView
from shadow_reader.store.reader import JournalReader


@dataclass(slots=True)
class Verified:
    """What was found.

    Attributes:
        entries: read and folded. kinds: of these, by kind.
        sessions: open at the end. known: ids known in all of them.
        bad_seq, problem: the first entry that cannot be read or cannot follow; None if there is
            none. Nothing behind it was looked at.
    """

    journal: str
    entries: int
    sessions: int
    known: int
    kinds: dict[str, int]
    bad_seq: int | None = None
    problem: str | None = None


async def verify_journal(path: Path) -> Verified:
    """Read a journal's file to its end, or to the first entry that is wrong.

    Raises:
        JournalError: the file cannot be opened as a journal at all.
    """
    views: dict[str, SessionView | None] = {}
    kinds: Counter[str] = Counter()
    bad_seq: int | None = None
    problem: str | None = None
    last_seq = 0
    async with await JournalReader.open(path) as journal:
        try:
            async for entry in journal.entries():
                last_seq = entry.seq
                if not isinstance(entry.event, t.EngineLoaded | t.EngineStopped):
                    views[entry.session] = fold(views.get(entry.session), entry)
                kinds[kind_of(entry.event)] += 1
        except JournalFormatError as error:
            bad_seq, problem = error.details.get("seq", last_seq), error.message
    live = [view for view in views.values() if view is not None]
    return Verified(
        journal=str(path),
        entries=kinds.total(),
        sessions=len(live),
        known=sum(len(view.known) for view in live),
        kinds=dict(sorted(kinds.items())),
        bad_seq=bad_seq,
        problem=problem,
    )

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
    folder = _Folder()
    bad_seq: int | None = None
    problem: str | None = None
    async with await JournalReader.open(path) as journal:
        try:
            await folder.fold_all(journal)
        except JournalFormatError as error:
            bad_seq, problem = error.details.get("seq", folder.at_seq), error.message
    live = [view for view in folder.views.values() if view is not None]
    return Verified(
        journal=str(path),
        entries=folder.kinds.total(),
        sessions=len(live),
        known=sum(len(view.known) for view in live),
        kinds=dict(sorted(folder.kinds.items())),
        bad_seq=bad_seq,
        problem=problem,
    )


class _Folder:
    """Folds entries as they come; ``at_seq`` is the one that was taken last."""

    def __init__(self) -> None:
        self.views: dict[str, SessionView | None] = {}
        self.kinds: Counter[str] = Counter()
        self.at_seq = 0

    async def fold_all(self, journal: JournalReader) -> None:
        """Fold everything, in order.

        Raises:
            JournalFormatError: at the first entry that is wrong; all before it were folded.
        """
        try:
            async for entry in journal.entries():
                self._fold(entry)
            return
        except JournalFormatError as error:
            if "seq" not in error.details:
                raise
        # A page with a broken entry comes not at all: go on one by one, up to that entry.
        while True:
            entries = [entry async for entry in journal.entries(after=self.at_seq, limit=1)]
            for entry in entries:
                self._fold(entry)
            if not entries:
                return

    def _fold(self, entry: t.Entry) -> None:
        self.at_seq = entry.seq
        if not isinstance(entry.event, t.EngineEvent):
            self.views[entry.session] = fold(self.views.get(entry.session), entry)
        self.kinds[kind_of(entry.event)] += 1

"""Writes groups of submissions, each group one transaction; lives on the writer's thread.

Law: a group is in the file whole, and its results are returned, or an error is raised and nothing
of it is there, not even for a reader who recovers the write-ahead log after a crash.

Rows go in by statements of many rows each: every statement lets the interpreter's lock go and has
to get it back, which a busy event loop makes slow.

An erased session's rows are overwritten with zeros where they lie, and stay as dead rows until
``reclaim.py`` leaves them out. Deleting them, or a change of their length, would make SQLite move
other sessions' rows between pages, and what it moves stays behind as bytes that no later erasure
finds. For the same reason rows of ``events`` and ``turns`` are only ever added at the end.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from shadow_reader.events import types as t
from shadow_reader.events.codec import Row, encode
from shadow_reader.events.ids import ID_BYTES
from shadow_reader.store import reclaim
from shadow_reader.store.connection import empty_log
from shadow_reader.store.keys import NO_NAME, Keys, SessionKey
from shadow_reader.store.submission import ROW_BYTES, Erasure, Result, Submission

_STATEMENT_ROWS: Final = (256, 64, 16, 4, 1)
_ROW_CELLS: Final = 7
_COMMIT_PAGES: Final = 3
_PAGE_BYTES: Final = 4096
_INSERTS: Final = {
    count: "INSERT INTO events(seq, at, session, turn, kind, data, ids) VALUES "
    + ",".join(["(?,?,?,?,?,?,?)"] * count)
    for count in _STATEMENT_ROWS
}
_UPDATE_SESSION: Final = (
    "UPDATE sessions SET last_seq = ?, last_at = ?, events = events + ?, erased = ? WHERE id = ?"
)

_MEASURE: Final = (
    "SELECT count(*), coalesce(sum(length(ids)), 0),"
    " coalesce(sum(length(data) + coalesce(length(ids), 0)), 0) FROM events WHERE session = ?"
)
_OVERWRITE: Final = (  # values of the same length, so that no row is moved
    "UPDATE events SET data = zeroblob(length(data)),"
    " ids = CASE WHEN ids IS NULL THEN NULL ELSE zeroblob(length(ids)) END WHERE session = ?",
    "UPDATE turns SET turn = printf('%.*c', length(CAST(turn AS BLOB)), '-') WHERE session = ?",
)


class Written(NamedTuple):
    """A committed group.

    Attributes:
        results: what became of each submission.
        last_seq: the newest seq.
        events: how many events.
        pages: how many pages were written, about.
    """

    results: list[Result]
    last_seq: int
    events: int
    pages: int


class EventWriter:
    """The only writer of a journal's file."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._keys = Keys(db)
        self._cells: list[object] = []
        """The rows that wait for their statement, cell by cell."""
        self._changed: list[SessionKey] = []
        row = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'events'").fetchone()
        self.last_seq: int = 0 if row is None else row[0]

    def write(self, group: Sequence[Submission]) -> Written:
        """Commit a group.

        Raises:
            sqlite3.Error: nothing of the group was kept.
        """
        first = self.last_seq
        try:
            self._db.execute("BEGIN IMMEDIATE")
            results = [self._take(submission) for submission in group]
            self._flush()
            sessions = len(self._changed)
            self._update_sessions()
            self._db.execute("COMMIT")
        except BaseException:
            self._undo(first)
            raise
        self._keys.trim()
        size = sum(submission.size for submission in group)
        pages = _COMMIT_PAGES + sessions + size // _PAGE_BYTES
        return Written(results, self.last_seq, self.last_seq - first, pages)

    def scrub(self, db: sqlite3.Connection) -> bool:
        """Empty the log of what was erased, dead rows' room taken back when that is due.

        Returns:
            False while a reader still needs the log.
        """
        with suppress(sqlite3.Error):  # room that cannot be had now is had later
            if reclaim.is_due(db):
                reclaim.reclaim(db)
        return empty_log(db)

    def _take(self, submission: Submission) -> Result:
        if isinstance(submission, Erasure):
            return tuple([self._erase(draft) for draft in submission.drafts])
        return self._add(submission.drafts, submission.rows)

    def _add(self, drafts: Sequence[t.Draft], rows: Sequence[Row]) -> range:
        lines, cells = self._keys.lines, self._cells
        seq = first = self.last_seq
        for (at, name, turn, _), (kind, version, data, ids) in zip(drafts, rows, strict=True):
            seq += 1
            line = lines.get((name, turn)) or self._keys.line(name, turn, seq)
            session = line.session
            if not session.new_events:
                self._changed.append(session)
            session.new_events += 1
            session.last_seq, session.last_at, session.erased = seq, at, False
            key = self._keys.kind(kind, version)
            cells += (seq, at, session.key, line.turn, key, data, ids)
        self.last_seq = seq
        return range(first + 1, seq + 1)

    def _erase(self, draft: t.Draft) -> t.Entry:
        self._flush()
        dead = self._keys.session(draft.session).key
        events, ids, content = self._db.execute(_MEASURE, (dead,)).fetchone()
        for statement in _OVERWRITE:
            self._db.execute(statement, (dead,))
        self._db.execute(
            "UPDATE sessions SET name = NULL, dead_bytes = ? WHERE id = ?",
            (content + (events + 1) * ROW_BYTES, dead),
        )
        self._keys.forget_session(draft.session)
        erased = t.SessionErased(events, ids // ID_BYTES)
        (seq,) = self._add([draft._replace(event=erased)], [encode(erased)])
        self._keys.session(draft.session).erased = True
        return t.Entry(draft.at, draft.session, draft.turn, erased, seq)

    def _flush(self) -> None:
        cells, start = self._cells, 0
        for count in _STATEMENT_ROWS:
            step = count * _ROW_CELLS
            while len(cells) - start >= step:
                self._db.execute(_INSERTS[count], cells[start : start + step])
                start += step
        cells.clear()

    def _update_sessions(self) -> None:
        self._db.executemany(
            _UPDATE_SESSION,
            [
                (s.last_seq, s.last_at, s.new_events, s.erased, s.key)
                for s in self._changed
                if s.key != NO_NAME
            ],
        )
        for session in self._changed:
            session.new_events = 0
        self._changed.clear()

    def _undo(self, first: int) -> None:
        self.last_seq = first
        self._cells.clear()
        self._changed.clear()
        self._keys.forget()
        with suppress(sqlite3.Error):  # the failure itself may have rolled back already
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        # A commit that failed in its last step leaves its frames in the log, where a recovery
        # after a crash could take them for committed. An emptied log holds none.
        with suppress(sqlite3.Error):
            empty_log(self._db)

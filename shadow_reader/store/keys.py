"""Integer keys for the words that rows repeat: session ids, turn ids, kinds with their version.

Lives on the writer's thread. Remembers some keys; after a rolled-back transaction all are
forgotten, since what it made went with it.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Final

MAX_REMEMBERED: Final = 8192
"""Sessions, and turns, whose keys are remembered; at so many all are forgotten and looked up."""

NO_NAME: Final = 0
"""The key of the empty session and the empty turn; it has no row."""


@dataclass(slots=True)
class SessionKey:
    """A session's key, and what the group that is being written changes in its row."""

    key: int
    new_events: int = 0
    last_seq: int = 0
    last_at: float = 0.0
    erased: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """Where an event belongs: its session, and the key of its turn."""

    session: SessionKey
    turn: int


class Keys:
    """Looks keys up and makes the missing ones, inside the transaction that is open."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._sessions: dict[str, SessionKey] = {"": SessionKey(NO_NAME)}
        self._kinds: dict[tuple[str, int], int] = {}
        self.lines: dict[tuple[str, str], Line] = {}
        """Remembered lines by session and turn; ``line`` finds the others."""

    def trim(self) -> None:
        """Forget everything between two groups when too much is remembered."""
        if max(len(self._sessions), len(self.lines)) > MAX_REMEMBERED:
            self.forget()

    def forget(self) -> None:
        """Remember nothing: the transaction was rolled back."""
        self._sessions = {"": SessionKey(NO_NAME)}
        self._kinds.clear()
        self.lines.clear()

    def forget_session(self, name: str) -> None:
        """The name no longer stands for the key that it had."""
        self._sessions.pop(name, None)
        self.lines = {words: line for words, line in self.lines.items() if words[0] != name}

    def line(self, session: str, turn: str, seq: int) -> Line:
        """Find or make the keys of an event's session and turn; a new turn begins at ``seq``."""
        owner = self.session(session)
        line = Line(owner, self._turn(owner.key, turn, seq) if turn else NO_NAME)
        self.lines[session, turn] = line
        return line

    def session(self, name: str) -> SessionKey:
        """Find or make the session's key. The same object as long as it is remembered."""
        session = self._sessions.get(name)
        if session is None:
            key = self._find("SELECT id FROM sessions WHERE name = ?", (name,)) or self._insert(
                "INSERT INTO sessions(name, last_seq, last_at, events, erased, dead_bytes)"
                " VALUES (?, 0, 0, 0, 1, 0)",
                (name,),
            )
            session = self._sessions[name] = SessionKey(key)
        return session

    def kind(self, kind: str, version: int) -> int:
        """Find or make the key of a kind in one version."""
        tag = (kind, version)
        key = self._kinds.get(tag)
        if key is None:
            key = self._find(
                "SELECT id FROM kinds WHERE kind = ? AND version = ?", tag
            ) or self._insert("INSERT INTO kinds(kind, version) VALUES (?, ?)", tag)
            self._kinds[tag] = key
        return key

    def _turn(self, session: int, turn: str, seq: int) -> int:
        at = (session, turn)
        return self._find(
            "SELECT id FROM turns WHERE session = ? AND turn = ?", at
        ) or self._insert(
            "INSERT INTO turns(session, turn, first_seq) VALUES (?, ?, ?)", (*at, seq)
        )

    def _find(self, sql: str, values: tuple[object, ...]) -> int | None:
        row = self._db.execute(sql, values).fetchone()
        return None if row is None else int(row[0])

    def _insert(self, sql: str, values: tuple[object, ...]) -> int:
        key = self._db.execute(sql, values).lastrowid
        assert key is not None
        return key

"""Integer keys for the words that rows repeat: session ids, turn ids, kinds with their version.

Lives on the writer's thread. Remembers some keys; after a rolled-back transaction all are
forgotten, since what it made went with it.
"""

from __future__ import annotations

import sqlite3
from typing import Final

MAX_REMEMBERED: Final = 8192
"""Sessions, and turns, whose keys are remembered; the oldest goes first."""

NO_NAME: Final = 0
"""The key of the empty session and the empty turn; it has no row."""


class Keys:
    """Looks keys up and makes the missing ones, inside the transaction that is open."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._sessions: dict[str, int] = {}
        self._turns: dict[tuple[int, str], int] = {}
        self._kinds: dict[tuple[str, int], int] = {}

    def forget(self) -> None:
        """Remember nothing: the transaction was rolled back."""
        self._sessions.clear()
        self._turns.clear()
        self._kinds.clear()

    def session(self, name: str) -> int:
        """The session's key."""
        if not name:
            return NO_NAME
        key = self._sessions.get(name)
        if key is None:
            key = self._find("SELECT id FROM sessions WHERE name = ?", (name,)) or self._insert(
                "INSERT INTO sessions(name, last_seq, last_at, events, erased, dead_bytes)"
                " VALUES (?, 0, 0, 0, 1, 0)",
                (name,),
            )
            _make_room(self._sessions)
            self._sessions[name] = key
        return key

    def turn(self, session: int, turn: str, seq: int) -> int:
        """The turn's key; a new turn's first event is ``seq``."""
        if not turn:
            return NO_NAME
        at = (session, turn)
        key = self._turns.get(at)
        if key is None:
            key = self._find(
                "SELECT id FROM turns WHERE session = ? AND turn = ?", at
            ) or self._insert(
                "INSERT INTO turns(session, turn, first_seq) VALUES (?, ?, ?)",
                (*at, seq),
            )
            _make_room(self._turns)
            self._turns[at] = key
        return key

    def kind(self, kind: str, version: int) -> int:
        """The key of a kind in one version."""
        tag = (kind, version)
        key = self._kinds.get(tag)
        if key is None:
            key = self._find(
                "SELECT id FROM kinds WHERE kind = ? AND version = ?", tag
            ) or self._insert("INSERT INTO kinds(kind, version) VALUES (?, ?)", tag)
            self._kinds[tag] = key
        return key

    def forget_session(self, name: str) -> None:
        """The name no longer stands for the key that it had."""
        self._sessions.pop(name, None)

    def _find(self, sql: str, values: tuple[object, ...]) -> int | None:
        row = self._db.execute(sql, values).fetchone()
        return None if row is None else int(row[0])

    def _insert(self, sql: str, values: tuple[object, ...]) -> int:
        key = self._db.execute(sql, values).lastrowid
        assert key is not None
        return key


def _make_room(cache: dict[str, int] | dict[tuple[int, str], int]) -> None:
    while len(cache) >= MAX_REMEMBERED:
        del cache[next(iter(cache))]  # type: ignore[arg-type]  # its own key, whichever dict it is

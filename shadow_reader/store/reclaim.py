"""Dead rows' room comes back: the tables are written anew without them, once they are the half.

Law: one transaction, every key kept, rows in their order. Written in order, rows only ever go
behind each other, so none is moved, and an erasure afterwards still finds every byte of a session.
"""

from __future__ import annotations

import sqlite3
from typing import Final

LEAST_DEAD_BYTES: Final = 8 << 20
"""Fewer dead bytes are left where they are."""

_DEAD: Final = "SELECT id FROM sessions WHERE name IS NULL"
_TABLES: Final = {"events": "seq", "turns": "id"}


def is_due(db: sqlite3.Connection) -> bool:
    """Whether the dead rows are worth the writing: as many bytes as the live ones, and not few."""
    (dead,) = db.execute(
        "SELECT coalesce(sum(dead_bytes), 0) FROM sessions WHERE name IS NULL"
    ).fetchone()
    if dead < LEAST_DEAD_BYTES:
        return False
    (pages,) = db.execute("PRAGMA page_count").fetchone()
    (free,) = db.execute("PRAGMA freelist_count").fetchone()
    (page_bytes,) = db.execute("PRAGMA page_size").fetchone()
    return bool(2 * dead >= (pages - free) * page_bytes)


def reclaim(db: sqlite3.Connection) -> None:
    """Leave the dead rows out. Appends wait meanwhile: some seconds a million live events.

    Raises:
        sqlite3.Error: everything is as it was.
    """
    db.execute("PRAGMA legacy_alter_table = ON")  # a renamed table leaves the view its name
    db.execute("BEGIN IMMEDIATE")
    try:
        (last_seq,) = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'events'").fetchone()
        for table, order in _TABLES.items():
            _rewrite(db, table, order)
        db.execute("DELETE FROM sqlite_sequence WHERE name = 'events'")
        db.execute("INSERT INTO sqlite_sequence(name, seq) VALUES ('events', ?)", (last_seq,))
        db.execute("DELETE FROM sessions WHERE name IS NULL")
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def _rewrite(db: sqlite3.Connection, table: str, order: str) -> None:
    made = db.execute(
        "SELECT type, name, sql FROM sqlite_schema WHERE tbl_name = ? AND sql IS NOT NULL"
        " AND type IN ('table', 'index') ORDER BY type = 'index'",
        (table,),
    ).fetchall()
    for kind, name, _ in made:
        if kind == "index":
            db.execute(f"DROP INDEX {name}")
    db.execute(f"ALTER TABLE {table} RENAME TO {table}_before")
    (_, _, create), *indexes = made
    db.execute(create)
    db.execute(
        f"INSERT INTO {table} SELECT * FROM {table}_before"
        f" WHERE session NOT IN ({_DEAD}) ORDER BY {order}"
    )
    db.execute(f"DROP TABLE {table}_before")
    for _, _, sql in indexes:
        db.execute(sql)

"""opencode's two stores on disk: a folder of JSON files, and an SQLite database.

- JSON (older), below ``storage``: ``session/<project>/<session>.json``,
  ``message/<session>/<message>.json``, ``part/<message>/<part>.json``.
- SQLite (newer): tables ``session(id, parent_id)``, ``message(id, session_id, data)`` and
  ``part(id, message_id, data)``; ``data`` is the JSON of the other store without its ids.

Ids sort by time in both. A database is opened read-only and never changed: while another program
has it open its log is read along; if there is no log nothing is created beside it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from shadow_reader.errors import RecordError
from shadow_reader.replay.ledger.imports.opencode import StoredMessage, take_session
from shadow_reader.replay.ledger.imports.requests import Intake
from shadow_reader.replay.records.detect import load_text
from shadow_reader.replay.records.fields import as_object, as_text, parse

SQLITE_MAGIC: Final = b"SQLite format 3\x00"

Progress = Callable[[int, int], None]


def is_store(folder: Path) -> bool:
    """Whether a folder holds opencode's JSON store, or is its ``storage``."""
    return any((root / "message").is_dir() for root in _roots(folder))


def take_store(intake: Intake, folder: Path, progress: Progress) -> None:
    """Take the requests of a JSON store; ``progress`` is told messages done and in all.

    Raises:
        RecordError: a file cannot be read or has another shape; it is named.
    """
    root = next(root for root in _roots(folder) if (root / "message").is_dir())
    parents = {}
    for file in sorted((root / "session").rglob("*.json")):
        info = _file(file)
        parents[as_text(info.get("id"), f"{file}: id")] = as_text(
            info.get("parentID"), f"{file}: parentID"
        )
    sessions = sorted(path for path in (root / "message").iterdir() if path.is_dir())
    for number, session in enumerate(sessions, start=1):
        messages = [
            StoredMessage(_file(file), _parts(root / "part" / file.stem), str(file))
            for file in sorted(session.glob("*.json"))
        ]
        take_session(intake, session.name, parents.get(session.name) or None, messages)
        progress(number, len(sessions))


def take_database(intake: Intake, file: Path, progress: Progress) -> None:
    """Take the requests of an SQLite store; ``progress`` is told sessions done and in all.

    Raises:
        RecordError: it is no opencode database, or cannot be read.
    """
    live = Path(f"{file}-wal").exists()
    address = f"file:{quote(str(file.absolute()))}?mode=ro" + ("" if live else "&immutable=1")
    try:
        with closing(sqlite3.connect(address, uri=True)) as database:
            database.execute("BEGIN")  # one moment of a database that others write
            sessions = database.execute("SELECT id, parent_id FROM session ORDER BY id").fetchall()
            for number, (session, parent) in enumerate(sessions, start=1):
                take_session(intake, session, parent, _messages(database, file, session))
                progress(number, len(sessions))
    except sqlite3.Error as error:
        raise RecordError(
            f"{file} cannot be read as opencode's database: {error}", path=str(file)
        ) from error


def _roots(folder: Path) -> tuple[Path, ...]:
    return (folder, folder / "storage")


def _parts(folder: Path) -> tuple[dict[str, Any], ...]:
    return tuple(_file(file) for file in sorted(folder.glob("*.json")))


def _file(file: Path) -> dict[str, Any]:
    return as_object(parse(load_text(file), str(file)), str(file))


def _messages(database: sqlite3.Connection, file: Path, session: str) -> list[StoredMessage]:
    parts: dict[str, list[dict[str, Any]]] = {}
    rows = database.execute(
        "SELECT id, message_id, data FROM part WHERE session_id = ? ORDER BY id", (session,)
    )
    for name, message, data in rows:
        where = f"{file}: part {name}"
        parts.setdefault(message, []).append(as_object(parse(data, where), where))
    messages = []
    rows = database.execute(
        "SELECT id, data FROM message WHERE session_id = ? ORDER BY id", (session,)
    )
    for name, data in rows:
        where = f"{file}: message {name}"
        info = {**as_object(parse(data, where), where), "id": name}
        messages.append(StoredMessage(info, tuple(parts.get(name, ())), where))
    return messages

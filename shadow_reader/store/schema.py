"""The journal's file: its tables, its versions, and what is refused at the door.

Laws: a file is a journal of a version this build knows, or it is left as it was found. A new
journal appears whole under its name or not at all. Each migration is one transaction.

An event's row holds keys instead of words: a session's id, a turn's id and a kind's tag stand once
in a table of their own, so that an event costs its ids, its data and some forty bytes more.
The view ``journal`` shows the rows with their words, for people with an SQLite shell.

A session without a name is dead: its events' content is zeros, and nobody is shown them
(``writer.py`` says why they are there at all, ``reclaim.py`` when they go).
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import quote

from shadow_reader.errors import JournalError, JournalFormatError
from shadow_reader.store.faults import from_sqlite, from_system

APPLICATION_ID: Final = 0x53684A72  # "ShJr"
OUTPUT_KEY: Final = 1
"""The key of output deltas: most of the events, so looking for them needs no index."""

NOT_OUTPUT: Final = f"kind <> {OUTPUT_KEY}"
Migration: TypeAlias = tuple[str, ...]

_STRICT: Final = " STRICT" if sqlite3.sqlite_version_info >= (3, 37) else ""

MIGRATIONS: Final[tuple[Migration, ...]] = (
    (
        f"""CREATE TABLE kinds(
            id INTEGER PRIMARY KEY, kind TEXT NOT NULL, version INTEGER NOT NULL,
            UNIQUE(kind, version)){_STRICT}""",
        f"INSERT INTO kinds(id, kind, version) VALUES ({OUTPUT_KEY}, 'output', 1)",
        f"""CREATE TABLE sessions(
            id INTEGER PRIMARY KEY, name TEXT UNIQUE, last_seq INTEGER NOT NULL,
            last_at REAL NOT NULL, events INTEGER NOT NULL, erased INTEGER NOT NULL,
            dead_bytes INTEGER NOT NULL){_STRICT}""",
        f"""CREATE TABLE turns(
            id INTEGER PRIMARY KEY, session INTEGER NOT NULL, turn TEXT NOT NULL,
            first_seq INTEGER NOT NULL){_STRICT}""",
        "CREATE INDEX turns_by_session ON turns(session)",
        f"""CREATE TABLE events(
            seq INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, session INTEGER NOT NULL,
            turn INTEGER NOT NULL, kind INTEGER NOT NULL, data BLOB NOT NULL, ids BLOB){_STRICT}""",
        "CREATE INDEX events_by_session ON events(session)",
        f"CREATE INDEX events_by_kind ON events(kind) WHERE {NOT_OUTPUT}",
        """CREATE VIEW journal AS
            SELECT e.seq, e.at, coalesce(s.name, '') AS session, coalesce(t.turn, '') AS turn,
                   k.kind, k.version, CAST(e.data AS TEXT) AS data, e.ids
            FROM events e JOIN kinds k ON k.id = e.kind
            LEFT JOIN sessions s ON s.id = e.session LEFT JOIN turns t ON t.id = e.turn
            WHERE e.session = 0 OR s.name IS NOT NULL""",
    ),
)
"""Migration n lifts a file from version n to n + 1; a file's version is its ``user_version``."""


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """Open an existing file; ``mode`` is the end of an SQLite file URI: rw, ro, ro&immutable=1."""
    uri = f"file:{quote(str(path))}?mode={mode}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, cached_statements=64)


def locate(path: Path | str, *, must_exist: bool = False) -> Path:
    """The journal's real path: its folder is there, and nothing but a file has its name.

    Raises:
        JournalError: names the path, and what was found.
    """
    real = Path(path).resolve()
    if not real.parent.is_dir():
        raise JournalError(f"journal folder {real.parent} is missing", path=str(real))
    if real.exists() and not real.is_file():
        raise JournalFormatError(f"journal {real} is not a file", path=str(real))
    if must_exist and not real.exists():
        raise JournalError(f"there is no journal {real}", path=str(real))
    return real


def create(path: Path) -> None:
    """Make an empty journal. The writer's lock is held.

    Raises:
        JournalFormatError: the log of a journal that is gone lies there.
        JournalFullError, JournalError: it could not be made, and nothing of it is left.
    """
    for end in ("-wal", "-journal"):  # SQLite would play it into the new file
        log = path.with_name(path.name + end)
        if log.exists():
            raise JournalFormatError(
                f"journal {path} is missing, but its log {log} is there: bring the journal back, "
                "or remove the log",
                path=str(path),
                found=str(log),
            )
    building = path.with_name(f".{path.name}.new")
    with suppress(FileNotFoundError):
        building.unlink()
    try:
        building.touch(0o644, exist_ok=False)
        with closing(connect(building, "rw")) as db:
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            migrate(db, path)
            db.execute("PRAGMA journal_mode = WAL")
        building.rename(path)
        _sync_folder(path.parent)
    except sqlite3.Error as error:
        raise from_sqlite(error, path, doing="creating journal") from error
    except OSError as error:
        raise from_system(error, path, doing="creating journal") from error
    finally:
        for end in ("", "-journal", "-wal", "-shm"):
            with suppress(OSError):
                building.with_name(building.name + end).unlink()


def inspect(path: Path) -> None:
    """Refuse what is not a journal of a version this build knows, touching nothing.

    Raises:
        JournalFormatError: garbage, a truncated file, another program's, a newer version.
    """
    size = path.stat().st_size
    if size == 0:
        raise JournalFormatError(f"{path} is empty, not a journal", path=str(path), found="empty")
    # Opening a database that nobody has open makes files beside it, unless it is immutable.
    logged = path.with_name(path.name + "-wal").exists()
    try:
        with closing(connect(path, "ro" if logged else "ro&immutable=1")) as db:
            version_of(db, path)
            if not logged:
                _check_whole(db, path, size)
    except sqlite3.Error as error:
        raise from_sqlite(error, path, doing="opening journal") from error


def _check_whole(db: sqlite3.Connection, path: Path, size: int) -> None:
    """SQLite itself would take a last page that is cut off for zeros."""
    (pages,) = db.execute("PRAGMA page_count").fetchone()
    (page_bytes,) = db.execute("PRAGMA page_size").fetchone()
    if size < pages * page_bytes:
        raise JournalFormatError(
            f"journal {path} is damaged: {size} bytes are left of {pages * page_bytes}",
            path=str(path),
            found=size,
            expected=pages * page_bytes,
        )


def reading_mode(path: Path) -> str:
    """How to open the file for reading: by the log, or as it lies where no log can be made."""
    logged = path.with_name(path.name + "-wal").exists()
    return "ro" if logged or os.access(path.parent, os.W_OK) else "ro&immutable=1"


def check_writable(path: Path) -> None:
    """The file may be written.

    Raises:
        JournalError: it is read-only.
    """
    if not os.access(path, os.W_OK):
        raise JournalError(f"journal {path} is read-only", path=str(path), found="read-only")


def check_newest(db: sqlite3.Connection, path: Path) -> None:
    """The file has the newest version, which is the only one that can be read.

    Raises:
        JournalFormatError: another program's file, a newer version, or an older one.
    """
    version = version_of(db, path)
    if version < len(MIGRATIONS):
        raise JournalFormatError(
            f"journal {path} has version {version}, this build reads {len(MIGRATIONS)}; opening "
            "it for writing brings it up to date",
            path=str(path),
            found=version,
            expected=len(MIGRATIONS),
        )


def version_of(db: sqlite3.Connection, path: Path) -> int:
    """The file's version.

    Raises:
        JournalFormatError: another program's file, or one from a newer version.
    """
    (application,) = db.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID:
        raise JournalFormatError(
            f"{path} is an SQLite file of another program (application id {application:#x})",
            path=str(path),
            found=application,
            expected=APPLICATION_ID,
        )
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if not 0 <= version <= len(MIGRATIONS):
        raise JournalFormatError(
            f"journal {path} has version {version}; this build knows up to {len(MIGRATIONS)}",
            path=str(path),
            found=version,
            limit=len(MIGRATIONS),
        )
    return int(version)


def migrate(db: sqlite3.Connection, path: Path) -> None:
    """Lift the file to the newest version, one transaction a step."""
    for version in range(version_of(db, path), len(MIGRATIONS)):
        db.execute("BEGIN IMMEDIATE")
        try:
            for statement in MIGRATIONS[version]:
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {version + 1}")
            db.execute("COMMIT")
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

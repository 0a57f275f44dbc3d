"""Reading entries: what was asked, as SQL over one page.

Laws: every filter is SQL with parameters. A page is bounded in rows and bytes and is one read
transaction, over before anybody sees the page. What a page costs does not grow with the pages
before it: each is found by an index, or by the rows' own order, from where the last one ended.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from shadow_reader.errors import JournalFormatError
from shadow_reader.events.codec import Row, decode
from shadow_reader.events.types import Entry
from shadow_reader.store.keys import NO_NAME
from shadow_reader.store.schema import NOT_OUTPUT, OUTPUT_KEY

PAGE_ROWS: Final = 512
PAGE_BYTES: Final = 4 << 20

_COLUMNS: Final = (
    "SELECT e.seq, e.at, coalesce(s.name, ''), coalesce(t.turn, ''),"
    " k.kind, k.version, e.data, e.ids"
)
_WORDS: Final = (  # left joins, so that the events' order leads
    " LEFT JOIN kinds k ON k.id = e.kind"
    " LEFT JOIN sessions s ON s.id = e.session"
    " LEFT JOIN turns t ON t.id = e.turn"
)


class Span(NamedTuple):
    """Entries still to be read: ``after`` < seq <= ``upto``."""

    after: int
    upto: int


@dataclass(frozen=True, slots=True)
class EntryQuery:
    """What ``Journal.entries`` was asked for, its limit apart."""

    session: str | None = None
    turn: str | None = None
    kinds: tuple[str, ...] | None = None
    after: int = 0
    since: float | None = None
    until: float | None = None
    newest_first: bool = False

    def holds(self, entry: Entry, kind: str) -> bool:
        """Whether an entry is asked for; the same question as the SQL's, in Python."""
        return (
            entry.seq > self.after
            and (self.session is None or entry.session == self.session)
            and (self.turn is None or entry.turn == self.turn)
            and (self.kinds is None or kind in self.kinds)
            and (self.since is None or entry.at >= self.since)
            and (self.until is None or entry.at < self.until)
        )

    def rest(self, span: Span, last: int) -> Span | None:
        """What is left of the span behind the entry ``last``; None when nothing is."""
        rest = Span(span.after, last - 1) if self.newest_first else Span(last, span.upto)
        return rest if rest.after < rest.upto else None


class Page(NamedTuple):
    """A page's entries, and what is left to be read; None when that is nothing."""

    entries: list[Entry]
    rest: Span | None


def newest_seq(db: sqlite3.Connection) -> int:
    """The newest committed seq, 0 when there is none."""
    row = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'events'").fetchone()
    return 0 if row is None else int(row[0])


def read_page(db: sqlite3.Connection, query: EntryQuery, span: Span | None, rows: int) -> Page:
    """Read the next page of at most ``rows`` entries; ``span`` is None for the first.

    Raises:
        JournalFormatError: an entry that cannot be read; names its seq.
    """
    db.execute("BEGIN")
    try:
        span = span or Span(query.after, newest_seq(db))
        statement = _statement(db, query, span, rows)
        if statement is None:
            return Page([], None)
        return _fetch(db.execute(*statement), query, span, rows)
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def _fetch(cursor: sqlite3.Cursor, query: EntryQuery, span: Span, rows: int) -> Page:
    entries: list[Entry] = []
    size = 0
    for seq, at, session, turn, kind, version, data, ids in cursor:
        entries.append(_entry(seq, at, session, turn, Row(kind, version, data, ids)))
        size += len(data) + len(ids or b"")
        if size >= PAGE_BYTES:
            break
    else:
        if len(entries) < rows:
            return Page(entries, None)
    cursor.close()
    return Page(entries, query.rest(span, entries[-1].seq))


def _entry(seq: int, at: float, session: str, turn: str, row: Row) -> Entry:
    try:
        return Entry(at, session, turn, decode(row), seq)
    except JournalFormatError as error:
        facts = {**error.details, "seq": seq}
        raise type(error)(f"entry {seq}: {error.message}", **facts) from error


def _statement(
    db: sqlite3.Connection, query: EntryQuery, span: Span, rows: int
) -> tuple[str, dict[str, Any]] | None:
    """The page's SQL and its parameters; None when no entry can match."""
    values: dict[str, Any] = {"after": span.after, "upto": span.upto, "rows": rows}
    where = ["e.seq > :after", "e.seq <= :upto"]
    source = "events e"
    if query.session is not None:
        values["session"] = _session_key(db, query.session)
        source = "events e INDEXED BY events_by_session"
        where.append("e.session = :session")
    elif db.execute("SELECT 1 FROM sessions WHERE name IS NULL LIMIT 1").fetchone():
        where.append(
            "NOT EXISTS (SELECT 1 FROM sessions d WHERE d.id = e.session AND d.name IS NULL)"
        )
    if query.turn is not None:
        where.append(_turn_condition(db, query.turn, values))
    for name, comparison in (("since", "e.at >= :since"), ("until", "e.at < :until")):
        if getattr(query, name) is not None:
            values[name] = getattr(query, name)
            where.append(comparison)
    order = "DESC" if query.newest_first else "ASC"
    if query.kinds is not None:
        kinds = _kind_keys(db, query.kinds)
        if query.session is None and query.turn is None and OUTPUT_KEY not in kinds:
            source, where = _merged(kinds, where, order), ["TRUE"]
        else:
            where.append(f"+e.kind IN ({','.join(map(str, kinds))})")
        if not kinds:
            return None
    if None in values.values():
        return None
    filters = " AND ".join(where)
    return (
        f"{_COLUMNS} FROM {source}{_WORDS} WHERE {filters} ORDER BY e.seq {order} LIMIT :rows",
        values,
    )


def _merged(kinds: list[int], where: list[str], order: str) -> str:
    """The page's rows out of each kind's own first rows, all found by the index on kinds."""
    filters = " AND ".join(where)
    arms = " UNION ALL ".join(
        f"SELECT * FROM (SELECT e.seq FROM events e INDEXED BY events_by_kind"
        f" WHERE e.kind = {kind} AND e.{NOT_OUTPUT} AND {filters}"
        f" ORDER BY e.seq {order} LIMIT :rows)"
        for kind in kinds
    )
    return (
        f"(SELECT seq FROM ({arms}) ORDER BY seq {order} LIMIT :rows) m"
        " CROSS JOIN events e ON e.seq = m.seq"
    )


def _session_key(db: sqlite3.Connection, session: str) -> int | None:
    if not session:
        return NO_NAME
    row = db.execute("SELECT id FROM sessions WHERE name = ?", (session,)).fetchone()
    return None if row is None else int(row[0])


def _turn_condition(db: sqlite3.Connection, turn: str, values: dict[str, Any]) -> str:
    """Begin where the turn did, and compare its key; turns of all sessions without one."""
    if not turn:
        return f"e.turn = {NO_NAME}"
    values["turn"] = turn
    chosen = "turn = :turn" + (" AND session = :session" if "session" in values else "")
    (first,) = db.execute(f"SELECT min(first_seq) FROM turns WHERE {chosen}", values).fetchone()
    if first is None:
        values["turn"] = None
        return "FALSE"
    values["after"] = max(values["after"], first - 1)
    return f"e.turn IN (SELECT id FROM turns WHERE {chosen})"


def _kind_keys(db: sqlite3.Connection, kinds: tuple[str, ...]) -> list[int]:
    marks = ",".join("?" * len(kinds))
    rows = db.execute(f"SELECT id FROM kinds WHERE kind IN ({marks}) ORDER BY id", kinds)
    return [int(key) for (key,) in rows]

"""Queries of a journal: flat rows that meet conditions, or the groups that they make.

Law: entries are read once, in the journal's order, and no more than one of them is held; what is
held beside is bounded: open questions, the groups, and the newest rows where those are asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from shadow_reader.errors import InvalidInputError
from shadow_reader.events.codec import KINDS
from shadow_reader.events.conditions import Condition, parse_condition
from shadow_reader.events.groups import Groups
from shadow_reader.events.rows import ANSWER, QUESTION, FlatRows, Row, fields_of
from shadow_reader.events.types import Answer, Entry, Question

MAX_NEWEST: Final = 100_000
LONGEST_WAIT_S: Final = 3600.0
"""A question is at most so much older than its answer."""

Entries: TypeAlias = Callable[..., AsyncIterator[Entry]]
"""``Journal.entries``, or that of a reader."""


@dataclass(slots=True)
class RowQuery:
    """What is asked of a journal.

    Attributes:
        kinds: of entries; none: all. where: conditions as a person writes them.
        since, until: unix seconds; the first is included, the second is not.
        limit: rows at most. newest_first: the newest ``limit`` ones, backwards.
        by, of: group the rows by a field, and sum up another one's numbers.
        ids: rows have ``ids``, too. seen: only entries with a greater ``seq``. given: rows so far.

    Raises:
        InvalidInputError: an unknown kind or field, no condition, or newest_first without a limit.
    """

    kinds: Sequence[str] = ()
    where: Sequence[str] = ()
    session: str | None = None
    turn: str | None = None
    since: float | None = None
    until: float | None = None
    limit: int | None = None
    newest_first: bool = False
    by: str | None = None
    of: str | None = None
    ids: bool = False
    seen: int = 0
    given: int = 0
    _conditions: tuple[Condition, ...] = ()
    _flat: FlatRows = field(default_factory=FlatRows)

    def __post_init__(self) -> None:
        unknown = [kind for kind in self.kinds if kind not in KINDS]
        if unknown:
            raise InvalidInputError(
                f"{unknown[0]!r:.80} is no kind; known are {', '.join(KINDS)}",
                field="kind",
                found=unknown[0][:80],
            )
        if self.newest_first and not 1 <= (self.limit or 0) <= MAX_NEWEST:
            raise InvalidInputError(
                f"the newest first: give a limit of 1 to {MAX_NEWEST}",
                field="limit",
                found=self.limit,
                limit=MAX_NEWEST,
            )
        if self.of is not None and self.by is None:
            raise InvalidInputError("of sums up what by groups: give by, too", field="of")
        fields = fields_of(self.kinds)
        self._conditions = tuple(parse_condition(text, fields) for text in self.where)
        self._flat = FlatRows(with_ids=self.ids)
        if self.by is not None:
            Groups(self.by, self.of, fields)

    async def rows(self, entries: Entries) -> AsyncGenerator[Row, None]:
        """The rows, or the groups; called again, those of what came since."""
        if self.by is not None:
            groups = Groups(self.by, self.of, fields_of(self.kinds))
            async for row in self._matching(entries):
                groups.take(row)
            for row in groups.rows():
                yield row
        elif self.newest_first:
            newest = deque[Row](maxlen=self.limit)
            async for row in self._matching(entries):
                newest.append(row)
            for row in reversed(newest):
                yield row
        else:
            if self.is_over():
                return
            async for row in self._matching(entries):
                self.given += 1
                yield row
                if self.is_over():
                    return

    def is_over(self) -> bool:
        """Whether as many rows were given as were asked for."""
        return self.limit is not None and self.given >= self.limit

    async def _matching(self, entries: Entries) -> AsyncGenerator[Row, None]:
        read = set(self.kinds)
        if ANSWER in read:
            read.add(QUESTION)
        filters: dict[str, Any] = {
            "session": self.session,
            "turn": self.turn,
            "kinds": sorted(read) or None,
            "after": self.seen,
            "since": self.since,
            "until": self.until,
        }
        async for entry in entries(**filters):
            self.seen = entry.seq
            if isinstance(entry.event, Answer) and not self._flat.knows(entry.event.question):
                await self._find_question(entries, entry)
            row = self._flat.row(entry)
            if self.kinds and row["kind"] not in self.kinds:
                continue
            if all(condition.holds(row) for condition in self._conditions):
                yield row

    async def _find_question(self, entries: Entries, answer: Entry) -> None:
        """The question may lie before what is read, or in another turn."""
        assert isinstance(answer.event, Answer)
        since = answer.at - LONGEST_WAIT_S
        asked = entries(
            session=answer.session,
            turn=None,
            kinds=[QUESTION],
            after=0,
            since=since,
            until=None,
        )
        async for entry in asked:
            if entry.seq > answer.seq:
                return
            if isinstance(entry.event, Question) and entry.event.question == answer.event.question:
                self._flat.remember(entry)
                return

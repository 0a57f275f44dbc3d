"""Prefix points: states left where sessions part, for the next one that begins like them.

Laws: a point belongs to no session, and is the first to give way. It knows the sessions whose ids
pass through it, and goes with the last of them, so nothing outlives an erasure that was made of
the erased session alone; a name that is forgotten too early only lets a point go too early. All
is bounded: points, names a point, and lines to watch for.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from shadow_reader.shadow.memory import HeldState, Memory, Trail
from shadow_reader.shadow.pool import Page

MAX_POINTS: Final = 16
"""Points kept; the one that was of use least recently goes."""

MAX_NAMES: Final = 64
"""Sessions remembered a point, the newest ones."""

MAX_WATCHED: Final = 256
"""Sessions whose way to a parting is remembered, the newest ones."""


@dataclass(slots=True, eq=False)
class Point:
    """A state with all pages below it, and the names of the sessions that pass through it."""

    pages: tuple[Page, ...]
    held: HeldState
    names: dict[str, None] = field(default_factory=dict)

    @property
    def top(self) -> Page:
        """The page at whose end it stands."""
        return self.pages[-1]

    @property
    def frees(self) -> bool:
        """Whether any bytes come free when it goes: no page has fewer holders than the top one."""
        return self.held.holders == 1 or self.top.holders == 1

    def add(self, session: str) -> None:
        """The session passes through it."""
        self.names.pop(session, None)
        self.names[session] = None
        while len(self.names) > MAX_NAMES:
            del self.names[next(iter(self.names))]


class PrefixPoints:
    """All points, by their top pages, least recently used first."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._points: dict[Page, Point] = {}
        self._watched: dict[str, bytes] = {}

    def __len__(self) -> int:
        return len(self._points)

    def __iter__(self) -> Iterator[Point]:
        return iter(tuple(self._points.values()))

    def started(self, session: str, trail: Trail, depth: int) -> None:
        """The session starts at ``depth`` chunks; others have gone along as far as ``trail``.

        Where pages reach deeper than any state, its own reading will leave a point at their end.
        """
        self._watched.pop(session, None)
        if len(trail.pages) > depth:
            self._watched[session] = trail.pages[-1].prefix
            if len(self._watched) > MAX_WATCHED:
                del self._watched[next(iter(self._watched))]
        if trail.pages and trail.depth:
            self._touch(trail.pages[trail.depth - 1])
        self.passes(session, set(trail.pages))

    def passes(self, session: str, pages: Container[Page]) -> None:
        """The session's ids pass through the ends of these pages and through no others."""
        for point in self:
            if point.top in pages:
                point.add(session)
            else:
                self._remove_name(point, session)

    def arrived(
        self, session: str, pages: tuple[Page, ...], held: HeldState, others: Iterable[str]
    ) -> None:
        """The session has read to the end of ``pages``; a point is left if it is due here.

        Takes no memory before the session reads on.

        Args:
            others: sessions to be asked for; those that share the last page are named.
        """
        top = pages[-1]
        point = self._points.get(top)
        due = self._watched.get(session) == top.prefix
        if due:
            del self._watched[session]
        if point is None and due:
            self._memory.hold(pages, [held])
            point = self._points[top] = Point(pages, held)
            for name in others:
                point.add(name)
            while len(self._points) > MAX_POINTS:
                self.remove(next(iter(self._points.values())))
        if point is not None:
            point.add(session)

    def forget(self, session: str) -> int:
        """The session is erased: points that were its alone go; the bytes freed."""
        self._watched.pop(session, None)
        return sum(self._remove_name(point, session) for point in self)

    def give_way(self) -> int:
        """The least recently used point that frees anything goes; the bytes freed, or 0."""
        point = next((point for point in self if point.frees), None)
        return 0 if point is None else self.remove(point)

    def remove(self, point: Point) -> int:
        """Let go of a point; the bytes freed."""
        del self._points[point.top]
        return self._memory.let_go(point.pages, [point.held])

    def clear(self) -> None:
        """Let go of everything."""
        self._watched.clear()
        for point in self:
            self.remove(point)

    def _remove_name(self, point: Point, session: str) -> int:
        if session not in point.names:
            return 0
        del point.names[session]
        return 0 if point.names else self.remove(point)

    def _touch(self, top: Page) -> None:
        point = self._points.pop(top, None)
        if point is not None:
            self._points[top] = point

"""A second, plainer account of what an engine must do with its sessions: lists of ids, no tensors.

It knows what was read, the checkpoint rule, who may start where another one has been, and which
prefix points are there for whom.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from shadow_reader.shadow.prefixes import MAX_POINTS

CUTS = ("mark", "below", "agree", "early", "late", "line", "before", "after", "mark", "shorter")
"""Where a prompt leaves the old one: at ids of that name, at a grid line or one off it, at a
checkpoint or one below, or anywhere with nothing behind (shorter)."""


def agree(one: Sequence[int], other: Sequence[int]) -> int:
    """How many leading ids agree."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


@dataclass
class Expected:
    """What must be true of one session."""

    known: list[int] = field(default_factory=list)
    read: list[int] = field(default_factory=list)
    checkpoints: list[int] = field(default_factory=list)

    def align(self) -> tuple[int, int | None]:
        """The checkpoint rule: (committed, cut) after the known ids have changed."""
        cut = agree(self.known, self.read)
        if cut >= len(self.read):
            return len(self.read), None
        self.checkpoints = [line for line in self.checkpoints if line <= cut]
        self.read = self.read[: max(self.checkpoints, default=0)]
        return len(self.read), cut

    def checkpoint(self) -> None:
        """Six at most, none at 0, none twice."""
        if self.read and len(self.read) not in self.checkpoints:
            self.checkpoints = [*self.checkpoints, len(self.read)][-6:]

    @property
    def lines(self) -> list[int]:
        """Where it has a state."""
        return [*self.checkpoints, len(self.read)]


def cut_place(kind: str, expected: Expected, where: int, grid: int) -> int:
    """A place in the known ids of one kind; ``where`` chooses among those of a kind."""
    length = len(expected.known)
    line = grid * (where % (length // grid + 1))
    marks = expected.checkpoints or [line]
    mark = marks[where % len(marks)]
    place = {
        "agree": length,
        "early": where % 4,
        "late": length - 1 - where % 4,
        "line": line,
        "before": line - 1,
        "after": line + 1,
        "mark": mark,
        "below": mark - 1,
    }.get(kind, where % (length + 1))
    return min(max(place, 0), length)


@dataclass
class Family:
    """All sessions, what was pinned of them, and the prefix points with their sessions' names."""

    grid: int
    sessions: dict[str, Expected] = field(default_factory=dict)
    pins: list[Expected] = field(default_factory=list)
    points: dict[tuple[int, ...], set[str]] = field(default_factory=dict)
    watched: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def session(self, name: str) -> Expected:
        """What is expected of the session; a new one stands at 0 and knows nothing."""
        return self.sessions.setdefault(name, Expected())

    def align(self, name: str) -> tuple[int, int | None, int]:
        """(committed, cut, shared) after the session's known ids have changed."""
        one = self.session(name)
        new = not one.read
        committed, cut = one.align()
        if not new and cut is None:
            return committed, None, 0
        best = deepest = 0
        for read, lines in self._held():
            common = agree(read, one.known) // self.grid * self.grid
            deepest = max(deepest, common)
            best = max(best, *(line for line in lines if line <= common), 0)
        shared = best if best > committed else 0
        if shared:
            one.read = one.known[:best]
        self.watched.pop(name, None)
        if deepest > len(one.read):
            self.watched[name] = tuple(one.known[:deepest])
        used = tuple(one.known[:best])
        if used in self.points:
            self.points[used] = self.points.pop(used)
        self.passes(name, one.known)
        return len(one.read), cut, shared

    def arrived(self, name: str) -> None:
        """The session has read a chunk."""
        ids = tuple(self.session(name).read)
        if self.watched.get(name) == ids:
            del self.watched[name]
            if ids not in self.points:
                self.points[ids] = {
                    other
                    for other, one in self.sessions.items()
                    if tuple(one.read[: len(ids)]) == ids
                }
                if len(self.points) > MAX_POINTS:
                    del self.points[next(iter(self.points))]
        if ids in self.points:
            self.points[ids].add(name)

    def passes(self, name: str, ids: Sequence[int]) -> None:
        """The session's ids are these."""
        for point, names in tuple(self.points.items()):
            if tuple(ids[: len(point)]) == point:
                names.add(name)
            else:
                self._without(point, name)

    def drop(self, name: str) -> None:
        """Its state goes; what is known of it stays."""
        one = self.session(name)
        one.read, one.checkpoints = [], []

    def erase(self, name: str) -> None:
        """Everything of it goes."""
        self.sessions.pop(name, None)
        self.watched.pop(name, None)
        for point in tuple(self.points):
            self._without(point, name)

    def _without(self, point: tuple[int, ...], name: str) -> None:
        names = self.points[point]
        if name in names:
            names.remove(name)
            if not names:
                del self.points[point]

    def _held(self) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
        """Ids whose pages are held, and where along them there is a state."""
        for one in (*self.sessions.values(), *self.pins):
            yield one.read, one.lines
        for point in self.points:
            yield point, [len(point)]

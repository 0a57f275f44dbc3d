"""A ledger out of a journal, and how far behind its reader was: what happened, from entries alone.

Laws: entries are taken in the journal's order, once, and nothing of them is kept but counts. A turn
without an end is left out, and counted. How far behind the reader was is definition A (see
``freshness``): what was known just before a prompt came, less what was read of it. A burst is
journaled when it is over; the chunks of it that had begun when a prompt came count as read, as the
request waits for the one in flight.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from shadow_reader.events import types as t
from shadow_reader.replay.ledger.freshness import GRID_IDS, Figures, figures
from shadow_reader.replay.ledger.ledger import Ledger, ledger_of
from shadow_reader.replay.ledger.turn import Turn

ENDS_ASSUMED: Final = frozenset({"superseded", "timeout"})
"""Nobody said when such a turn ended: its last id counts."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a journal says of its own reader.

    Attributes:
        behind: ids behind at the start of each turn of the ledger, by session.
        used_s, decode_s: of all turns: what the reader used of them, and their time since their
            first ids.
        read_ms_per_1000: what 1,000 ids took; None where nothing was read.
        grid: ids a chunk, of the engine that was loaded last; None: none was.
    """

    behind: Mapping[str, tuple[int, ...]]
    used_s: float
    decode_s: float
    read_ms_per_1000: float | None
    grid: int | None

    @property
    def values(self) -> list[int]:
        """At every turn's start."""
        return [n for every in self.behind.values() for n in every]

    def figures(self) -> Figures:
        """Fresh share, p50, p90."""
        return figures(self.values, self.grid or GRID_IDS)

    @property
    def share_used(self) -> float:
        """Of the time since the turns' first ids."""
        return self.used_s / self.decode_s if self.decode_s else 0.0


@dataclass(frozen=True, slots=True)
class JournalLedger:
    """A journal as a ledger. ``unfinished``: turns that were left out."""

    ledger: Ledger
    measured: Measured
    unfinished: int


@dataclass(slots=True)
class _Line:
    """One line of talk as it stands.

    Attributes:
        ends_s: when its last turn ended. asked: its last prompt, while it may have ended a burst.
        burst: what of that burst was journaled so far.
    """

    known: int = 0
    position: int = 0
    turns: int = 0
    ends_s: float = 0.0
    turn: _Running | None = None
    asked: _Asked | None = None
    burst: list[_Part] = field(default_factory=list)


@dataclass(slots=True)
class _Running:
    start_s: float
    prompt_ids: int
    prefix_ids: int
    first_s: float | None = None
    last_s: float = 0.0
    output_ids: int = 0


@dataclass(frozen=True, slots=True)
class _Part:
    """A burst, or what it read between two checkpoints; all parts are journaled at its end."""

    start: int
    stop: int
    took_s: float
    at_s: float


@dataclass(slots=True)
class _Asked:
    """A prompt came when ``known`` ids were known; ``behind`` as far as it is known by now."""

    at_s: float
    known: int
    behind: int


async def journal_ledger(name: str, entries: AsyncIterable[t.Entry]) -> JournalLedger:
    """Read a whole journal.

    Raises:
        LedgerError: it holds no turn that is over. JournalFormatError: an entry cannot be read.
    """
    taking = _Taking()
    async for entry in entries:
        taking.take(entry)
    taking.finish()
    ledger = ledger_of(name, taking.turns)
    behind = {
        session: tuple(asked.behind for asked in taking.asked[session][: len(own.turns)])
        for session, own in ledger.sessions.items()
    }
    rate = 1000 * taking.read_ms / taking.read_ids if taking.read_ids else None
    decode_s = sum(turn.end_s - turn.first_s for turn in taking.turns if turn.first_s is not None)
    measured = Measured(behind, taking.used_ms / 1000, decode_s, rate, taking.grid)
    unfinished = sum(line.turn is not None for line in taking.lines.values())
    return JournalLedger(ledger, measured, unfinished)


class _Taking:
    def __init__(self) -> None:
        self.lines: dict[str, _Line] = {}
        self.turns: list[Turn] = []
        self.asked: dict[str, list[_Asked]] = {}
        self.used_ms = self.read_ms = 0.0
        self.read_ids = 0
        self.grid: int | None = None

    def take(self, entry: t.Entry) -> None:
        """The next entry."""
        match entry.event:
            case t.EngineLoaded(grid=grid):
                self.grid = grid
                self._nothing_resident()
            case t.EngineReleased() | t.EngineStopped():
                self._nothing_resident()
            case t.HoldBegun() | t.HoldEnded() | t.ProbeTrained() | t.ProbeRetired():
                pass
            case _:
                self._take_of(self.lines.setdefault(entry.session, _Line()), entry)

    def finish(self) -> None:
        """There are no more."""
        for line in self.lines.values():
            self._burst_is_over(line)

    def _nothing_resident(self) -> None:
        for line in self.lines.values():
            line.position = 0

    def _take_of(self, line: _Line, entry: t.Entry) -> None:
        event = entry.event
        if not isinstance(event, t.Read | t.Checkpoint):
            self._burst_is_over(line)
        match event:
            case t.Prompt(keep=keep, ids=ids):
                self._prompt(line, entry, keep, keep + len(ids))
            case t.FirstToken():
                _first(line, entry.at)
            case t.Output(ids=ids):
                _first(line, entry.at)
                if line.turn is not None:
                    line.turn.output_ids += len(ids)
                    line.turn.last_s = entry.at
                line.known += len(ids)
            case t.TurnEnded(reason=reason):
                self._end(line, entry, assumed=reason in ENDS_ASSUMED)
            case t.RationUsed(used_ms=used_ms):
                self.used_ms += used_ms
            case t.SessionErased():
                self._forget(entry.session)
            case _:
                self._moved(line, entry)

    def _moved(self, line: _Line, entry: t.Entry) -> None:
        """Where the state stands now."""
        match entry.event:
            case t.Read(start=start, stop=stop, ms=ms):
                self._read(line, entry.at, start, stop, ms)
            case t.Rewind(to=position) | t.Shared(position=position) | t.Restore(position=position):
                line.position = position
            case t.Dropped():
                line.position = 0
            case t.Spill(kept=kept):
                line.position = line.position if kept else 0
            case _:
                pass

    def _prompt(self, line: _Line, entry: t.Entry, keep: int, length: int) -> None:
        asked = _Asked(entry.at, line.known, max(0, line.known - line.position))
        self.asked.setdefault(entry.session, []).append(asked)
        line.asked = asked
        start_s = max(entry.at, line.ends_s)
        line.turn = _Running(start_s, length, min(keep, line.known), last_s=start_s)
        line.known = length

    def _end(self, line: _Line, entry: t.Entry, *, assumed: bool) -> None:
        turn, line.turn = line.turn, None
        if turn is None:
            return
        end_s = max(turn.last_s if assumed else entry.at, turn.start_s)
        first_s = None if turn.first_s is None else min(max(turn.first_s, turn.start_s), end_s)
        self.turns.append(
            Turn(
                session=entry.session,
                parent=None,
                turn=line.turns,
                start_s=turn.start_s,
                first_s=first_s,
                end_s=end_s,
                prompt_ids=turn.prompt_ids,
                prefix_ids=turn.prefix_ids,
                output_ids=turn.output_ids,
                assumed=("end_s",) if assumed else (),
            )
        )
        line.turns += 1
        line.ends_s = end_s

    def _read(self, line: _Line, at_s: float, start: int, stop: int, ms: float) -> None:
        part = _Part(start, stop, ms / 1000, at_s)
        if line.burst and at_s - part.took_s >= line.burst[-1].at_s:
            self._burst_is_over(line)  # it began when that one was journaled already
        if line.asked is not None:
            line.burst.append(part)
        line.position = stop
        self.read_ms += ms
        self.read_ids += stop - start

    def _burst_is_over(self, line: _Line) -> None:
        """The prompt that may have ended it: up to where had its chunks begun?"""
        if line.asked is None or not line.burst:
            return
        end_s = line.burst[-1].at_s
        for part in reversed(line.burst):
            began_s = end_s - part.took_s
            begun = _begun(part, began_s, line.asked.at_s, self.grid or GRID_IDS)
            if begun > part.start:
                line.asked.behind = max(0, line.asked.known - begun)
                break
            end_s = began_s
        line.asked, line.burst = None, []

    def _forget(self, session: str) -> None:
        """Nothing of it is in the journal any more; what comes now is another session."""
        self.lines[session] = _Line()
        self.turns = [turn for turn in self.turns if turn.session != session]
        self.asked.pop(session, None)


def _first(line: _Line, at_s: float) -> None:
    if line.turn is not None and line.turn.first_s is None:
        line.turn.first_s = at_s


def _begun(part: _Part, began_s: float, at_s: float, grid: int) -> int:
    """Up to where the part's chunks had begun at a time."""
    if at_s <= began_s:
        return part.start
    chunks = max(1, (part.stop - part.start) // grid)
    share = (at_s - began_s) / part.took_s if part.took_s else 1.0
    begun = min(chunks, math.ceil(round(share * chunks, 3)))
    return part.start + (part.stop - part.start) // chunks * begun

"""One live session, and what a message gives back: plain values without behaviour of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from shadow_reader.events import types as t
from shadow_reader.events.view import SessionView


@dataclass(frozen=True, slots=True)
class Accepted:
    """The acknowledgement of a message.

    Attributes:
        known: ids of the session known after it. output: output ids of the turn.
        seq: the last journal entry it made; None when it said nothing new.
    """

    session: str
    turn: str
    known: int
    output: int
    seq: int | None


@dataclass(frozen=True, slots=True)
class Erased:
    """What an erasure removed."""

    session: str
    events: int
    ids: int


@dataclass(slots=True, eq=False)
class LiveSession:
    """One session in memory. Only ``Sessions`` changes it.

    Attributes:
        tentative: with everything submitted. durable: with everything committed.
        heard_s: monotonic time of the last message; of a session that was loaded, the time when
            its last entry was journaled, as well as the wall clock can tell.
        loaded_s: monotonic time when it came into memory.
        message: number of the last message among all messages of this process; 0: none yet.
        inflight: submissions not yet committed. last: the newest submission's future.
    """

    session: str
    tentative: SessionView | None
    durable: SessionView | None
    heard_s: float
    loaded_s: float
    message: int = 0
    inflight: int = 0
    last: asyncio.Future[tuple[t.Entry, ...]] | None = None

    @property
    def erasing(self) -> asyncio.Future[tuple[t.Entry, ...]] | None:
        """The erasure that is on its way: nothing may be decided until it is done."""
        return self.last if self.tentative is None and self.inflight else None

    @property
    def running(self) -> bool:
        """Whether a turn runs, committed or not."""
        return self.tentative is not None and self.tentative.running

    @property
    def may_leave(self) -> bool:
        """Whether nothing is lost when it leaves memory."""
        if self.inflight:
            return False
        view = self.tentative
        return view is None or not (view.running or view.questions)


@dataclass(slots=True)
class Receipt:
    """What a decided and queued message gives: await it for the acknowledgement.

    Cancelling whoever awaits does not take the message back.

    Attributes:
        entry: which entry of the submission is the message's last; None when it said nothing new.
    """

    accepted: Accepted
    future: asyncio.Future[tuple[t.Entry, ...]] | None
    entry: int | None

    def __await__(self) -> Generator[Any, None, Accepted]:
        if self.future is None:
            return self.accepted
        if not self.future.done():
            yield from asyncio.shield(self.future).__await__()
        entries = self.future.result()
        if self.entry is None:
            return self.accepted
        a = self.accepted
        return Accepted(a.session, a.turn, a.known, a.output, entries[self.entry].seq)

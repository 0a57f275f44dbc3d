"""One live session, and what a message gives back: plain values without behaviour of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from shadow_reader.events import types as t
from shadow_reader.events.outputs import Outcome
from shadow_reader.events.view import SessionView

Committing: TypeAlias = "asyncio.Future[range] | asyncio.Future[tuple[t.Entry, ...]]"
"""A submission on its way: gives the seqs of its entries, or the entries that an erasure left."""


_NOT_COMMITTED: Final = 2**62
"""Above any seq."""


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
    """What an erasure removed; ``branches``: lines of talk beside the session's first."""

    session: str
    events: int
    ids: int
    branches: int = 0


@dataclass(slots=True, eq=False)
class LiveSession:
    """One line of a session's talk in memory: most have only one. Only ``Sessions`` changes it.

    Attributes:
        session: the line's name. owner: the session's, which is the same for its first line.
        tentative: with everything submitted. durable: with everything committed.
        heard_s: monotonic time of the last message; of a session that was loaded, the time when
            its last entry was journaled, as well as the wall clock can tell.
        loaded_s: monotonic time when it came into memory.
        prompted: the last prompt's seq, or what is greater than any while it is not committed.
        branches: how many more lines the session has; counted at its first line.
        decoding: the turn whose first token was seen; decoding_s: when, monotonic.
        message: number of the last message among all messages of this process; 0: none yet.
        inflight: submissions not yet committed. last: the newest submission's future.
    """

    session: str
    owner: str
    tentative: SessionView | None
    durable: SessionView | None
    heard_s: float
    loaded_s: float
    prompted: int = 0
    branches: int = 0
    decoding: str = ""
    decoding_s: float = 0.0
    message: int = 0
    inflight: int = 0
    last: Committing | None = None

    @property
    def erasing(self) -> Committing | None:
        """The erasure that is on its way: nothing may be decided until it is done."""
        return self.last if self.tentative is None and self.inflight else None

    @property
    def running(self) -> bool:
        """Whether a turn runs, committed or not."""
        return self.tentative is not None and self.tentative.running

    def prompted_by(self, receipt: Receipt) -> None:
        """Its turn began with this prompt; one that repeats another says nothing new."""
        future = receipt.future
        if not receipt.is_new or future is None:
            return
        mark = self.prompted = _NOT_COMMITTED + self.message

        def committed(done: asyncio.Future[Any]) -> None:
            if self.prompted == mark and not done.cancelled() and done.exception() is None:
                self.prompted = done.result()[-1]

        future.add_done_callback(committed)

    def has_turn(self, turn: str) -> bool:
        """Whether the turn is, or was, this line's."""
        view = self.tentative
        if view is None or view.turn is None:
            return False
        return view.turn.turn == turn or turn in view.past_turns

    @property
    def decodes_since_s(self) -> float | None:
        """Since when the running turn decodes, monotonic; None: none runs, or it is in prefill."""
        turn = self.tentative.turn if self.tentative is not None else None
        if turn is None or not turn.running or turn.turn != self.decoding:
            return None
        return self.decoding_s

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
        future: of the commit that the acknowledgement waits for; None: there is none.
        is_new: whether the commit is of this message, and not of one that it repeats.
    """

    accepted: Accepted
    future: Committing | None
    is_new: bool

    @property
    def settled(self) -> bool:
        """Whether awaiting it gives its result at once."""
        return self.future is None or self.future.done()

    def __await__(self) -> Generator[Any, None, Accepted]:
        seqs = yield from _seqs(self.future, self.is_new)
        a = self.accepted
        return Accepted(a.session, a.turn, a.known, a.output, seqs[-1]) if seqs else a


@dataclass(slots=True)
class RunReceipt:
    """What a run of outputs gives: ``await`` it for the seqs of its events.

    Attributes:
        outcomes: what became of each output of the run.
        is_new: as in ``Receipt``.
    """

    outcomes: list[Outcome]
    future: Committing | None
    is_new: bool

    @property
    def settled(self) -> bool:
        """Whether awaiting it gives its result at once."""
        return self.future is None or self.future.done()

    def __await__(self) -> Generator[Any, None, range]:
        """Seqs of the new events; none where nothing was new."""
        return (yield from _seqs(self.future, self.is_new))


def _seqs(future: Committing | None, is_new: bool) -> Generator[Any, None, range]:
    """Wait for the commit; the seqs of what is new in it. Its own cancelling is the waiter's."""
    if future is None:
        return range(0)
    if not future.done():
        yield from asyncio.shield(future).__await__()
    committed = future.result()
    return committed if is_new and isinstance(committed, range) else range(0)

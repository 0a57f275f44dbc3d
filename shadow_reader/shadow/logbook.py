"""What the reader did while it held the lease, in order; journaled when it has let go.

Waiting for the journal with the lease in hand would make requests wait for the disk.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from shadow_reader.events import types as t
from shadow_reader.events.ids import EMPTY, Ids
from shadow_reader.events.view import SessionView
from shadow_reader.shadow.engine import Aligned


@dataclass(frozen=True, slots=True)
class Deed:
    """Something done to a session.

    Attributes:
        read: for a checkpoint, the ids that were read.
        opened_at: when the session was opened that it was done to; None: any of that name.
    """

    session: str
    event: t.SessionEvent
    read: Ids = EMPTY
    opened_at: float | None = None


@dataclass(slots=True)
class Logbook:
    """Deeds in the order they were done; chunks read in a row become one event."""

    deeds: list[Deed] = field(default_factory=list)

    def read(self, view: SessionView, event: t.Read) -> None:
        """A chunk was read; it lengthens the event before it when it goes on where that stopped."""
        last = self.deeds[-1] if self.deeds else None
        if last is not None and last.session == view.session and isinstance(last.event, t.Read):
            before = last.event
            if (before.stop, before.window) == (event.start, event.window):
                ms = round(before.ms + event.ms, 3)
                longer = t.Read(before.start, event.stop, event.window, ms)
                self.deeds[-1] = replace(last, event=longer)
                return
        self.add(view.session, event, view)

    def rewind(self, view: SessionView, aligned: Aligned) -> None:
        """The state was compared with the ids; it may have gone back, or taken over another's."""
        if aligned.cut is not None:
            self.add(view.session, t.Rewind(aligned.cut, aligned.committed, aligned.reread), view)
        if aligned.shared:
            self.add(view.session, t.Shared(aligned.shared), view)

    def add(self, session: str, event: t.SessionEvent, view: SessionView | None) -> None:
        """Something else was done to ``session``; ``view`` is what was known of it then."""
        if view is None:
            self.deeds.append(Deed(session, event))
        else:
            self.deeds.append(Deed(session, event, view.known, view.opened_at))

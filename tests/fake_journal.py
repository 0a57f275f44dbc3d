"""A journal whose commits fail, wait or take their time as a test asks; and what is in it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Callable,
    Iterator,
    Sequence,
)
from typing import Any

from shadow_reader.errors import JournalError
from shadow_reader.events.types import Draft, Entry, Happened
from shadow_reader.store.memory import MemoryJournal
from shadow_reader.store.queue import Promise
from shadow_reader.store.submission import Result, Submission


class FlakyJournal(MemoryJournal):
    """A journal in memory whose commits fail when ``fails`` says so.

    Attributes:
        fails: asked before each commit, with its drafts.
        commit_s: how long a commit takes.
        gate: an unset event holds commits back.
        cleaned: an unset event holds erasures back that are committed already, as the file's
            journal does while another program reads it.
        loads: how often a session was read from the journal.
    """

    def __init__(self, *, pending_limit: int = 8192, commit_s: float = 0.0) -> None:
        super().__init__(pending_limit=pending_limit)
        self.fails: Callable[[Sequence[Submission]], bool] = lambda _group: False
        self.commit_s = commit_s
        self.gate = asyncio.Event()
        self.gate.set()
        self.cleaned = asyncio.Event()
        self.cleaned.set()
        self.failed = 0
        self.loads: Counter[str] = Counter()

    def entries(self, *, session: str | None = None, **filters: Any) -> AsyncIterator[Entry]:
        """Count the reading of whole sessions."""
        if session is not None and not filters:
            self.loads[session] += 1
        return super().entries(session=session, **filters)

    def erase(self, *drafts: Draft) -> Promise[tuple[Entry, ...]]:
        """Done when the rows are gone and the file is clean."""
        written = super().erase(*drafts)
        promise: Promise[tuple[Entry, ...]] = Promise()

        async def clean() -> None:
            try:
                entry = await written
                await self.cleaned.wait()
            except JournalError as error:
                promise.fail(error)
            else:
                promise.set_result(entry)

        task = asyncio.ensure_future(clean())
        promise.add_done_callback(lambda _: task.done())
        return promise

    async def _commit(self, group: Sequence[Submission]) -> Sequence[Result]:
        if self.commit_s:
            await asyncio.sleep(self.commit_s)
        await self.gate.wait()
        if self.fails(group):
            self.failed += 1
            raise JournalError("the commit failed, as the test asked")
        return await super()._commit(group)


def script(outcomes: Sequence[bool]) -> Callable[[Sequence[Submission]], bool]:
    """Fail the commits whose turn is True; the ones after the script succeed."""
    left: Iterator[bool] = iter(outcomes)
    return lambda _group: next(left, False)


async def all_entries(journal: MemoryJournal, session: str | None = None) -> list[Entry]:
    """Everything committed, in order."""
    return [entry async for entry in journal.entries(session=session)]


def events_of(drafts: Sequence[Happened]) -> list[object]:
    """The events alone."""
    return [draft.event for draft in drafts]

"""What waits for the writer: a bounded queue, one task that commits it in groups.

Laws: submissions are committed in the order they came. Nothing is done before its commit. When a
commit fails, it and everything behind it fails: listeners first, then the futures, and no other
task runs in between. Cancelling a waiter cancels nothing.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from shadow_reader.errors import JournalError, ShutDownError

GROUP_EVENTS: Final = 2048
"""A group is full at so many events; it bounds how long one commit takes."""

GROUP_BYTES: Final = 8 << 20
"""A group is full at so many bytes too."""

P = TypeVar("P")
R = TypeVar("R")


class Promise(asyncio.Future[R]):
    """A future that its waiters cannot cancel: what was submitted is written."""

    def cancel(self, msg: Any | None = None) -> bool:  # noqa: ARG002  # asyncio's signature
        """Refuse."""
        return False

    def __await__(self) -> Generator[Any, None, R]:
        """Wait behind a shield, so that a cancelled waiter leaves at once, alone."""
        if self.done():
            return super().__await__()
        return asyncio.shield(self).__await__()

    __iter__ = __await__

    def fail(self, error: BaseException) -> None:
        """Set an error that nobody has to look at."""
        self.set_exception(error)
        self.exception()


@dataclass(slots=True)
class _Waiting(Generic[P, R]):
    payload: P
    events: int
    size: int
    promise: Promise[R]


class WriteQueue(Generic[P, R]):
    """Bounded, first in first out; ``commit`` gets what is queued, a group at a time.

    Args:
        commit: writes the payloads together or not at all; one result each. A JournalError
            fails the queue's content, and the queue goes on with what comes after.
        limit: events waiting from which on ``room`` waits.
        limit_bytes: the same for their bytes.
    """

    def __init__(
        self,
        commit: Callable[[Sequence[P]], Awaitable[Sequence[R]]],
        *,
        limit: int,
        limit_bytes: int,
    ) -> None:
        self.limit = limit
        self.limit_bytes = limit_bytes
        self.pending = 0
        self.pending_bytes = 0
        self._commit = commit
        self._queue: deque[_Waiting[P, R]] = deque()
        self._listeners: list[Callable[[], None]] = []
        self._writer: asyncio.Task[None] | None = None
        self._rooms: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        self._admitting = False
        self._closing = False

    def submit(self, payload: P, *, events: int, size: int) -> Promise[R]:
        """Queue a payload that counts as ``events`` and ``size`` bytes.

        Raises:
            ShutDownError: the queue is closing.
        """
        self._check_open()
        promise: Promise[R] = Promise(loop=asyncio.get_running_loop())
        self._queue.append(_Waiting(payload, events, size, promise))
        self.pending += events
        self.pending_bytes += size
        self._start_writer()
        return promise

    async def room(self) -> None:
        """Wait, first come first served, until less than the limits is pending.

        One waiter is let in at a time, and the next only after the first had its chance to
        submit, so the limits are passed by at most one submission.

        Raises:
            ShutDownError: the queue is closing.
        """
        self._check_open()
        if self._has_room() and not self._rooms and not self._admitting:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._rooms[waiter] = None
        self._admit()
        try:
            await waiter
        except asyncio.CancelledError:
            self._rooms.pop(waiter, None)
            if not waiter.cancelled():
                self._admit_next()
            raise
        self._check_open()
        asyncio.get_running_loop().call_soon(self._admit_next)

    def on_failure(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` whenever submissions fail, before their futures do."""
        self._listeners.append(listener)

    async def close(self) -> None:
        """Take nothing more, send those who wait for room away, commit what is queued."""
        self._closing = True
        while self._rooms:
            waiter, _ = self._rooms.popitem(last=False)
            if not waiter.done():
                waiter.set_exception(_shut_down())
        while self._writer is not None:
            await asyncio.wait({self._writer})

    # -- room ---------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closing:
            raise _shut_down()

    def _has_room(self) -> bool:
        return self.pending < self.limit and self.pending_bytes < self.limit_bytes

    def _admit(self) -> None:
        while self._rooms and self._has_room() and not self._admitting:
            waiter, _ = self._rooms.popitem(last=False)
            if not waiter.done():
                self._admitting = True
                waiter.set_result(None)

    def _admit_next(self) -> None:
        self._admitting = False
        self._admit()

    # -- writing ------------------------------------------------------------------------------

    def _start_writer(self) -> None:
        if self._writer is None and self._queue:
            self._writer = asyncio.create_task(self._drain(), name="journal writer")

    async def _drain(self) -> None:
        try:
            while self._queue:
                group = self._take()
                try:
                    results = await self._commit([item.payload for item in group])
                except JournalError as error:
                    self._fail(group, error)
                except asyncio.CancelledError:
                    self._abandon(group)
                    raise
                except BaseException as error:
                    self._fail(group, JournalError(f"the journal's writer broke: {error!r}"))
                    raise
                else:
                    self._settle(group, results)
        finally:
            self._writer = None
            self._start_writer()  # when a listener raised, what others submitted is still there

    def _take(self) -> list[_Waiting[P, R]]:
        group = [self._queue.popleft()]
        events, size = group[0].events, group[0].size
        while self._queue and events < GROUP_EVENTS and size < GROUP_BYTES:
            item = self._queue.popleft()
            events += item.events
            size += item.size
            group.append(item)
        return group

    def _settle(self, group: list[_Waiting[P, R]], results: Sequence[R]) -> None:
        for item, result in zip(group, results, strict=True):
            self.pending -= item.events
            self.pending_bytes -= item.size
            item.promise.set_result(result)
        self._admit()

    def _fail(self, group: list[_Waiting[P, R]], error: JournalError) -> None:
        failed = [*group, *self._queue]
        self._queue.clear()
        self.pending = self.pending_bytes = 0
        try:
            for listener in self._listeners:
                listener()
        finally:
            for item in failed:
                item.promise.fail(type(error)(error.message, **error.details))
            self._admit()

    def _abandon(self, group: list[_Waiting[P, R]]) -> None:
        """The event loop ends without ``close``: whether the group was written is not known."""
        self._closing = True
        for item in (*group, *self._queue):
            asyncio.Future.cancel(item.promise)
        self._queue.clear()


def _shut_down() -> ShutDownError:
    return ShutDownError("the journal is closing")

"""When the narrator may use the device: a slice at a time, beside turns within a share of its own.

Laws: while turns decode, all slices together take at most ``share`` of the time since each turn's
first token, and one slice. In prefill, under a hold, beside a request that holds the lease and has
not paused, or while somebody else has the box, there is none; where an engine calls its rounds,
they come in those alone. The lease is let go of after each slice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Final, TypeVar

from shadow_reader.clock import Clock
from shadow_reader.shadow.engine import Engine
from shadow_reader.shadow.job_thread import JobThread
from shadow_reader.shadow.lease import Lease, Rank
from shadow_reader.shadow.ration import Ration
from shadow_reader.shadow.reader import Reader
from shadow_reader.shadow.telling import Telling
from shadow_reader.shadow.windows import Windows

OWNER: Final = "narrator"
WAIT_S: Final = 0.05
"""How often it is looked whether the ration allows a slice by now, while a turn decodes."""

T = TypeVar("T")


class Slices:
    """Hands out slices.

    Args:
        share: of the time since a turn's first token; 0: none while a turn decodes.

    Attributes:
        ration: what was used of the turns that decode. last_s: what the last slice took.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        device: JobThread,
        lease: Lease,
        clock: Clock,
        reader: Reader,
        windows: Windows,
        share: float,
    ) -> None:
        self._engine = engine
        self._device = device
        self._lease = lease
        self._clock = clock
        self._reader = reader
        self._windows = windows
        self.ration = Ration(share)
        self.last_s = 0.0
        self._in_round: deque[asyncio.Future[asyncio.Event]] = deque()

    async def round(self) -> None:
        """An engine has paused, and the reader is done: one slice, if one waits and may be."""
        waiting = [future for future in self._in_round if not future.done()]
        self._in_round = deque(waiting)
        if waiting and self._allowance_s() > 0:
            done = asyncio.Event()
            self._in_round.popleft().set_result(done)
            await done.wait()

    async def run(self, telling: Telling, job: Callable[[], T], cost_s: float) -> T:
        """One job of the device, when it may be done; what it took is charged to the turns."""
        while True:
            async with self._allowed(cost_s) as may:
                if not may:
                    continue
                await self._device.run(self._engine.synchronise)
                began = self._clock.monotonic()
                try:
                    found = await self._device.run(job)
                    await self._device.run(self._engine.synchronise)
                    return found
                finally:
                    self.last_s = self._clock.monotonic() - began
                    telling.used_s += self.last_s
                    self.ration.charge(self.last_s)

    @asynccontextmanager
    async def _allowed(self, cost_s: float) -> AsyncIterator[bool]:
        """The device, where it may be had; False after a wait for that."""
        if self._windows.holds.any:
            await asyncio.sleep(WAIT_S)
            yield False
        elif not self._turns_run():
            async with self._lease.hold(Rank.NARRATOR, OWNER):
                idle = not self._turns_run() and not self._windows.holds.any
                may = idle and self._windows.box.try_take()
                try:
                    yield may
                finally:
                    if may:
                        self._windows.box.release()
            if not may:
                await asyncio.sleep(WAIT_S)
        elif self._allowance_s() < cost_s and self._allowance_s() < self._windows.slice_s:
            await asyncio.sleep(WAIT_S)
            yield False
        elif self._reader.rounds.called:
            async with self._a_round(cost_s) as may:
                yield may
        else:
            with self._lent() as may:
                yield may
            if not may:
                await asyncio.sleep(WAIT_S)

    @contextmanager
    def _lent(self) -> Iterator[bool]:
        """The lease, if it is to be had at once, or to be lent by requests that have paused."""
        grant = self._lease.try_acquire(Rank.NARRATOR, OWNER)
        grant = grant or self._lease.lend(Rank.NARRATOR, OWNER)
        try:
            yield grant is not None
        finally:
            if grant is not None:
                self._lease.release(grant)

    @asynccontextmanager
    async def _a_round(self, cost_s: float) -> AsyncIterator[bool]:
        """A moment in which the engine has paused for us."""
        paused: asyncio.Future[asyncio.Event] = asyncio.get_running_loop().create_future()
        self._in_round.append(paused)
        done: asyncio.Event | None = None
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(WAIT_S * 10):
                    done = await paused
            if done is None or self._allowance_s() < min(cost_s, self._windows.slice_s):
                yield False
            else:
                with self._lent() as may:
                    yield may
        finally:
            if done is None and paused.done() and not paused.cancelled():
                done = paused.result()
            if done is not None:
                done.set()
            paused.cancel()

    def _turns_run(self) -> bool:
        return self._windows.turns_block and self._reader.roster.any_runs()

    def _allowance_s(self) -> float:
        """What may be used now; 0 where a running turn is in prefill."""
        running = {live.session: live for live in self._reader.roster.running()}
        for line in tuple(self.ration.accounts):
            live = running.get(line)
            if live is None or live.decoding != self.ration.accounts[line].turn:
                self.ration.end(line)
        for line, live in running.items():
            if live.decodes_since_s is None:
                return 0.0
            self.ration.begin(line, live.decoding, live.decodes_since_s)
        return self.ration.allowance_s(self._clock.monotonic())

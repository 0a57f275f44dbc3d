"""The model's slot: what is loaded, what is not yet, and why.

Laws:

1. The service takes messages whether or not the model is there. It is loaded beside that, in the
   first idle window in which it is wanted and fits; what stands in the way is said.
2. One task loads and releases; whoever asks for either waits for it, and being cancelled changes
   nothing. The last word counts: who waits for a load that a release overtook is told so.
3. A released model comes back with the next turn that is to be read, not before. One that could
   not be loaded is tried again only when somebody asks for it.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import Final

from shadow_reader.errors import (
    AskTimeoutError,
    ConflictError,
    ModelError,
    OutOfRoomError,
    ShadowError,
    ShutDownError,
)
from shadow_reader.events import types as t
from shadow_reader.events.snapshots import SnapshotStats
from shadow_reader.making import Maker
from shadow_reader.reading import Reading, Surroundings
from shadow_reader.shadow.changes import Changes
from shadow_reader.shadow.claim import Claim
from shadow_reader.shadow.engine import Engine
from shadow_reader.shadow.mover import SpillProgress
from shadow_reader.shadow.status import NO_MODEL, SlotState, SlotStatus

LOOK_S: Final = 10.0
"""How often it is looked whether there is room by now."""

RELEASED: Final = "the model was released; the next turn, or load, brings it back"
NO_PROFILE: Final = "no profile of the settings has the shadow on"

log = logging.getLogger(__name__)


class Slot:
    """Holds the one model of the service, or the reason why there is none.

    Args:
        given: an engine that the caller brought: it is loaded at the start, and stays.
        maker: makes any other.
        on_loaded: called each time the model is there.
    """

    def __init__(
        self,
        around: Surroundings,
        *,
        given: Engine | None,
        maker: Maker,
        on_loaded: Callable[[], None],
    ) -> None:
        self._around = around
        self.given = given
        self._maker = maker
        self._on_loaded = on_loaded
        self._changes = Changes()
        self._asked = False
        self._released = False
        self._closing = False
        self._turns_then = 0
        self._error: ShadowError | None = None
        self._broken: ModelError | None = None
        self._claim: Claim | None = None
        self._state: SlotState = "off"
        self._reason = ""
        self._worker: asyncio.Task[None] | None = None
        self._disk_stats = around.snapshots.store.stats() if around.snapshots else None
        self.reading: Reading | None = None

    # -- from outside -------------------------------------------------------------------------

    async def start(self) -> None:
        """Take what was brought along; begin to look for the moment to load anything else.

        Raises:
            VocabularyError: there is none for the engine that was brought along.
        """
        self._rest()
        if self.given is not None:
            await self._take(self.given)
        elif self._around.settings.model:
            self._around.lease.on_free(self.tell)
            self._worker = asyncio.create_task(self._run(), name="slot")

    def tell(self, session: str = "") -> None:
        """Something changed: a session was heard of, or the lease became free."""
        if self.reading is not None:
            self.reading.reader.wake(session)
            if session:
                self.reading.narrator.tell(session)
            if not self._released:
                return  # nothing for the slot's own task
        self._changes.tell()

    async def ready(self) -> Reading:
        """Wait for the model where it is wanted and on its way.

        Raises:
            ModelError: it is not, and why. ShutDownError: the service closes.
        """
        while self.reading is None:
            self._check_open()
            if self._state in ("off", "released", "releasing", "failed"):
                raise ModelError(self._reason, field="model", state=self._state)
            await self._changes.next()
        return self.reading

    async def load(self, *, timeout_s: float) -> SlotStatus:
        """Load the model in the next idle window, whatever the profiles say.

        Raises:
            OutOfRoomError: it does not fit. ModelError: it cannot be loaded, or none is named.
            AskTimeoutError: no idle window came in time; it is loaded in the next one.
            ConflictError: somebody released it meanwhile.
        """
        self._own_model()
        self._asked, self._released, self._error = True, False, self._broken
        self._changes.tell()
        try:
            async with asyncio.timeout(timeout_s):
                while self.reading is None or self._state != "loaded":
                    self._check_open()
                    if self._error is not None:
                        raise self._error
                    if self._released:
                        raise ConflictError("the model was released meanwhile", field="model")
                    await self._changes.next()
        except TimeoutError:
            raise AskTimeoutError(
                f"the model is not loaded within {timeout_s:g} s: {self._reason or self._state}",
                field="timeout_s",
                limit=timeout_s,
            ) from None
        return self.status()

    async def release(self) -> SlotStatus:
        """Finish the work in flight, spill every resident state, and give the memory back.

        Raises:
            ModelError: there is no model, or it is the caller's own.
            ConflictError: somebody loaded it meanwhile.
        """
        self._own_model()
        self._asked, self._released, self._error = False, True, None
        self._turns_then = self._around.sessions.turns_begun
        self._changes.tell()
        while self.reading is not None or self._state in ("loading", "releasing"):
            self._check_open()
            if not self._released:
                raise ConflictError("the model was loaded again meanwhile", field="model")
            await self._changes.next()
        self._rest()
        return self.status()

    async def forget(self, session: str) -> None:
        """Drop what there is of a session that is gone: its state and its snapshot."""
        snapshots = self._around.snapshots
        if self.reading is not None:
            await self.reading.reader.forget(session)
        elif snapshots is not None:
            await snapshots.disk.run(snapshots.store.erase, session)
            self._disk_stats = await snapshots.disk.run(snapshots.store.stats)

    async def close(self) -> None:
        """Release what is loaded, or on its way; nothing is loaded any more."""
        self._closing = True
        self._changes.tell()
        async with AsyncExitStack() as stack:  # what a cancelled step leaves, the next one does
            stack.push_async_callback(self._close_reading)
            if self._worker is not None:
                self._around.lease.forget(self.tell)
                self._worker.cancel()
                await asyncio.gather(self._worker, return_exceptions=True)

    async def _close_reading(self) -> None:
        closing = ShutDownError("the service is closing")
        if self.reading is not None:
            await self._let_go(closing)
        else:
            self._around.line.send_away(closing)
            await self._around.line.settle()

    def host_buffer(self, size: int) -> memoryview:
        """Memory to read a snapshot's file into. Safe on any thread."""
        reading = self.reading
        return memoryview(bytearray(size)) if reading is None else reading.engine.host_buffer(size)

    def disk_stats(self) -> SnapshotStats | None:
        """How the snapshots stand, as of the last one moved; None without a disk."""
        if self.reading is not None and self.reading.mover is not None:
            self._disk_stats = self.reading.mover.stats
        return self._disk_stats

    def spilling(self, progress: SpillProgress) -> None:
        """How far the spilling is."""
        if self._state == "releasing":
            self._reason = f"{progress.done} of {progress.sessions} states are spilled"

    def status(self) -> SlotStatus:
        """How it stands."""
        claim = self._claim
        return SlotStatus(
            self._state,
            self._reason,
            claim.claim_bytes if claim else None,
            claim.free_bytes if claim else None,
        )

    # -- the task -----------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            await self._work()
        except Exception as error:
            log.exception("the slot's task stopped")
            self._broken = ModelError(f"the slot stopped: {error!r}", field="model")
            self._say("failed", self._broken.message)
            raise

    async def _work(self) -> None:
        while True:
            self._come_back()
            if self.reading is not None and self._released:
                await self._release()
            elif self.reading is None and self._wants() and self._error is None:
                why = self._in_the_way()
                if why:
                    self._say("waiting", why)
                    await self._look_again()
                else:
                    await self._load()
            else:
                await self._look_again()

    def _come_back(self) -> None:
        """A turn that is to be read ends a release."""
        if self._released and self._around.sessions.turns_begun > self._turns_then:
            self._released = False
            self._rest()
            self._changes.tell()  # who waits for the release, too

    def _wants(self) -> bool:
        return not self._released and (self._asked or self._around.settings.wants_model)

    def _in_the_way(self) -> str:
        """Why this is no idle window; empty when it is one."""
        windows = self._around.windows
        if windows.holds.any:
            return "waits while a hold is on"
        if not self._around.lease.free:
            return "waits: a request holds the lease, or waits for it"
        if windows.turns_block and any(live.running for live in self._around.sessions.live()):
            return "waits while turns run (foreground)"
        return ""

    async def _look_again(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await self._changes.next()

    async def _load(self) -> None:
        around, settings = self._around, self._around.settings
        self._say("loading", "")
        spec = settings.model_spec()
        words = asyncio.create_task(asyncio.to_thread(self._maker.vocabulary, spec))
        try:
            self._claim = await around.device.run(self._maker.claim, settings)
            self._claim.check()
            engine = await around.device.run(self._maker.build, settings)
            around.line.vocabulary = await words
            await self._install(engine)
        except OutOfRoomError as error:
            log.warning("the model is not loaded: %s", error)
            await self._refused(error)
        except (ShadowError, OSError, RuntimeError) as error:
            log.exception("the model cannot be loaded")
            self._error = ModelError(f"the model cannot be loaded: {error}", field="model")
            self._say("failed", self._error.message)
        finally:
            words.cancel()
            await asyncio.gather(words, return_exceptions=True)

    async def _refused(self, error: OutOfRoomError) -> None:
        """Tell who asked, and try again when there may be room."""
        asked, self._asked = self._asked, False
        self._error = error if asked else None
        self._say("waiting", error.message)
        await asyncio.sleep(0)  # those who wait are told before the next attempt
        self._error = None
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                while not (self._asked or self._released):
                    await self._changes.next()

    async def _install(self, engine: Engine) -> None:
        reading = Reading(engine, self._around)
        try:
            await reading.start()
        except BaseException:
            await self._around.device.run(engine.close)
            raise
        self.reading = reading
        self._say("loaded", "")
        self._on_loaded()

    async def _take(self, engine: Engine) -> None:
        around = self._around
        try:
            if around.line.vocabulary is None:
                spec = around.settings.model_spec()
                around.line.vocabulary = await asyncio.to_thread(self._maker.vocabulary, spec)
        except BaseException:
            await around.device.run(engine.close)
            raise
        await self._install(engine)

    async def _release(self) -> None:
        assert self.reading is not None
        engine, died = self.reading.engine.identity.engine, self.reading.reader.died
        self._say("releasing", "the work in flight is finished")
        await self._let_go(ModelError(RELEASED, field="model"))
        gc.collect()
        event = t.EngineReleased(engine, "failed" if died else "asked")
        try:
            await self._around.sessions.journal.submit(
                [t.Draft(self._around.clock.wall(), "", "", event)]
            )
        except ShadowError as error:
            log.warning("the journal did not take the release of the model: %s", error)
        self._rest()

    async def _let_go(self, why: ShadowError) -> None:
        assert self.reading is not None
        try:
            await self.reading.close(why)
        finally:
            self.disk_stats()
            self.reading = None

    # -- small things -------------------------------------------------------------------------

    def _say(self, state: SlotState, reason: str) -> None:
        self._state, self._reason = state, reason
        self._changes.tell()

    def _rest(self) -> None:
        """Nothing is loaded and nothing is on its way: say why."""
        if self.reading is not None:
            return
        settings = self._around.settings
        if self._released:
            self._say("released", RELEASED)
        elif self.given is None and not settings.model:
            self._say("off", NO_MODEL)
        elif self.given is None and not settings.wants_model and not self._asked:
            self._say("off", NO_PROFILE)
        else:
            self._say("waiting", "waits for an idle window")
        away = self._state in ("off", "released")
        self._around.line.away = ModelError(self._reason, field="model") if away else None

    def _own_model(self) -> None:
        if self.given is not None:
            raise ModelError(
                "the engine was handed in: it is the caller's to let go of", field="model"
            )
        if not self._around.settings.model:
            raise ModelError(NO_MODEL, field="model")

    def _check_open(self) -> None:
        if self._closing:
            raise ShutDownError("the service is closing")

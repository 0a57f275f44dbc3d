"""The library's calls on one running service. What it is made of, ``assembly`` knows.

    async with Runtime(settings) as shadow:
        await shadow.prompt("s1", ids, turn="t1")
        await shadow.output("s1", "t1", offset=0, ids=[...])
        await shadow.end("s1", "t1")
        reply = await shadow.ask("s1", "Is the user done?", ["yes", "no"])

The HTTP API is a thin layer over these calls. Torch is imported only when there is a model.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from shadow_reader.assembly import Parts
from shadow_reader.errors import AskTimeoutError, NotFoundError, ShutDownError
from shadow_reader.events import types as t
from shadow_reader.profiles import NARRATE
from shadow_reader.service import Service
from shadow_reader.shadow import jobs
from shadow_reader.shadow.holds import Hold
from shadow_reader.shadow.jobs import StateDigest
from shadow_reader.shadow.lease import Rank
from shadow_reader.shadow.narrator import Narrator
from shadow_reader.shadow.plan import When
from shadow_reader.shadow.questions import Ask, Reply
from shadow_reader.shadow.roster import Roster
from shadow_reader.shadow.sessions import Accepted, Erased, LiveSession
from shadow_reader.shadow.status import (
    RoundReply,
    SessionStatus,
    SlotStatus,
    Status,
    engine_status,
    session_status,
    totals,
    windows_status,
)
from shadow_reader.shadow.telling import SummaryReply, Telling

LOAD_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Summary:
    """A summary under way."""

    narrator: Narrator
    telling: Telling

    def __aiter__(self) -> AsyncGenerator[str, None]:
        """Its text, in pieces of whole characters, as it is written."""
        return self.narrator.pieces(self.telling)

    async def reply(self) -> SummaryReply:
        """What became of it, once it is over.

        Raises:
            ShadowError: why nothing could be written.
        """
        return await asyncio.shield(self.telling.reply)


class Runtime(Service):
    """The calls on one service; see ``Service`` for how it is made."""

    # -- what an engine says ------------------------------------------------------------------

    async def prompt(
        self,
        session: str,
        ids: list[int],
        *,
        turn: str | None = None,
        keep: int | None = None,
        keep_of: str | None = None,
        router: str | None = None,
        profile: str | None = None,
        decided: bool | None = None,
    ) -> Accepted:
        """A turn begins with the whole prompt, or with ``keep`` known ids and then ``ids``.

        Args:
            keep_of: the turn whose line of talk ``keep`` counts on; default: the last prompt's.
            router: what the engine's own router made of the turn; decided: whether it decided that
                on this turn, or took it over from an earlier one.
            profile: a profile of the settings; default: the one called default, if there is one.
        """
        receipt = await self.sessions.prompt(
            session,
            ids,
            turn=turn,
            keep=keep,
            keep_of=keep_of,
            router=router,
            profile=profile,
            decided=decided,
        )
        return await receipt

    async def first_token(self, session: str, turn: str) -> Accepted:
        """The turn's prefill is over. The first output says it too."""
        return await (await self.sessions.first_token(session, turn))

    async def output(self, session: str, turn: str, *, offset: int, ids: list[int]) -> Accepted:
        """Output ids, ``offset`` counted from the turn's first output id."""
        return await (await self.sessions.output(session, turn, offset=offset, ids=ids))

    async def end(
        self, session: str, turn: str, *, reason: t.EndReason = "stop", produced: int | None = None
    ) -> Accepted:
        """The turn ends; ``produced`` is the engine's own count of output ids."""
        return await (await self.sessions.end(session, turn, reason=reason, produced=produced))

    async def label(self, session: str, labels: Sequence[t.Label]) -> Accepted:
        """Journal what is right of the session, for learned questions and for comparing.

        Raises:
            NotFoundError: no such session. InvalidInputError: a label that is none; none is taken.
        """
        return await (await self.sessions.labels(session, labels))

    async def erase(self, session: str) -> Erased:
        """Remove the session: events, ids and state. Once begun it goes through to the end.

        Raises:
            NotFoundError: no such session. BusyError: too many are being erased.
        """
        return await self._running().erasures.erase(session)

    # -- what is asked ------------------------------------------------------------------------

    async def ask(
        self,
        session: str,
        question: str | list[int] = "",
        choices: Sequence[str] = (),
        *,
        wait: When = "fresh",
        position: int | None = None,
        calibrate: bool = False,
        timeout_s: float | None = None,
        probe: str | None = None,
    ) -> Reply:
        """A typed question about the session, or ``probe`` alone, by name; see ``ask_many``."""
        asked = [Ask(question, choices, calibrate, probe=probe)]
        (reply,) = await self.ask_many(
            session, asked, wait=wait, position=position, timeout_s=timeout_s
        )
        return reply

    async def ask_many(
        self,
        session: str,
        questions: Sequence[Ask],
        *,
        wait: When = "fresh",
        position: int | None = None,
        timeout_s: float | None = None,
    ) -> tuple[Reply, ...]:
        """Typed questions about the session, all asked or none, with the answers that each alone
        would get; see ``QuestionLine.ask_many``.

        Raises:
            ModelError: no model is loaded.
        """
        parts = self._running()
        limit_s = parts.line.limit(timeout_s)
        await self._check_profile(session)
        asked_s = self.clock.monotonic()
        try:
            async with asyncio.timeout(limit_s):
                await self._reading()
        except TimeoutError:
            raise AskTimeoutError(
                f"the model was not loaded within {limit_s:g} s: {parts.slot.status().reason}",
                field="timeout_s",
                limit=limit_s,
            ) from None
        return await parts.line.ask_many(
            session, questions, wait=wait, position=position, timeout_s=timeout_s, asked_s=asked_s
        )

    async def summary(
        self, session: str, *, prompt: str = NARRATE, timeout_s: float | None = None
    ) -> Summary:
        """Begin a summary of the last thought of the session's last turn.

        It is written while nobody else needs the device, in a turn within ``narrator_share``, and
        ends when its turn does. Listen to its pieces: whoever stops ends it.

        Raises:
            InvalidInputError: there is no thought that has ended. NotFoundError: no such session.
            BusyError: too many are written. ModelError: no model is loaded, or the profile has the
            shadow off.
        """
        limit_s = self._running().line.limit(timeout_s)
        await self._check_profile(session)
        live = await self.sessions.spoken(session)
        if live.tentative is None:
            raise NotFoundError(f"no session {session!r}", field="session", found=session)
        narrator = (await self._reading()).narrator
        if live.inflight and live.last is not None:
            await asyncio.wait([live.last])  # what was said is committed, and read from then on
        view = live.durable or live.tentative
        return Summary(
            narrator, narrator.begin(live.session, view, prompt=prompt, timeout_s=limit_s)
        )

    async def wait_fresh(self, session: str, *, timeout_s: float | None = None) -> SessionStatus:
        """Wait until less than one chunk of the session is unread.

        Raises:
            NotFoundError: no such session (any more). AskTimeoutError: not within ``timeout_s``
            (default: ``ask_timeout_s``). ModelError: no model is loaded, or the profile of the
            session's last turn has the shadow off. ShutDownError: the reader stopped, and why.
        """
        limit_s = self.settings.ask_timeout_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(limit_s):
                line = (await self.sessions.spoken(session)).session
                await (await self._reading()).reader.wait_fresh(line)
        except TimeoutError:
            raise AskTimeoutError(
                f"session {session!r} was not fresh within {limit_s:g} s",
                field="timeout_s",
                limit=limit_s,
            ) from None
        except ShutDownError:
            self._check_alive()
            raise
        return await self._line_status(await self.sessions.load(line))

    async def session_status(self, session: str) -> SessionStatus:
        """How one session stands: of its lines of talk the one last spoken of, or the one named.

        Raises:
            NotFoundError: no such session.
        """
        return await self._line_status(await self.sessions.spoken(session))

    async def _line_status(self, live: LiveSession) -> SessionStatus:
        parts = self._running()
        if live.durable is None:
            session = live.session
            raise NotFoundError(f"no session {session!r}", field="session", found=session)
        return session_status(live, live.durable, _roster(parts))

    async def status(self, *, shown: int | None = None) -> Status:
        """How everything stands; ``shown`` sessions one by one, by default ``status_sessions``."""
        parts = self._running()
        roster, reading = _roster(parts), parts.slot.reading
        there = [live for live in parts.sessions.live() if live.durable is not None]
        # They came into view about in the order they were heard of: from behind it takes one look.
        newest = heapq.nlargest(
            self.settings.status_sessions if shown is None else shown,
            reversed(there),
            key=lambda live: live.heard_s,
        )
        return Status(
            state=self._state,
            reason=self._reason,
            uptime_s=self.clock.monotonic() - self._started_s,
            slot=parts.slot.status(),
            model=engine_status(reading.engine) if reading else None,
            journal=parts.journal.stats(),
            snapshots=parts.slot.disk_stats(),
            lease=self.lease.status(),
            windows=windows_status(
                parts.windows, reading.reader.rounds if reading else None, self.clock.monotonic()
            ),
            limits=self.bounds.limits(),
            totals=totals(there, roster),
            router=parts.router.status() if parts.router is not None else None,
            narrator=reading.narrator.status() if reading is not None else None,
            sessions=tuple(
                session_status(live, live.durable, roster) for live in newest if live.durable
            ),
        )

    async def digest(self, session: str) -> StateDigest:
        """The digest of the session's state, and the grid line it holds for.

        Raises:
            NotFoundError: no state is resident.
        """
        parts = self._running()
        engine = self._resident().engine
        line = (await parts.sessions.spoken(session)).session
        async with self.lease.hold(Rank.SUMMARY, "digest"):
            found = await parts.device.run(jobs.digest, engine, line)
        if found is None:
            raise _no_state(session)
        return found

    async def export(self, session: str) -> bytes:
        """The session's state as one safetensors file.

        Raises:
            NotFoundError: no state is resident. TooLargeError: it passes ``export_bytes``.
        """
        parts = self._running()
        engine = self._resident().engine
        limit_bytes = self.settings.export_bytes
        line = (await parts.sessions.spoken(session)).session
        async with self.lease.hold(Rank.SUMMARY, "export"):
            found = await parts.device.run(
                partial(jobs.export, engine, line, limit_bytes=limit_bytes)
            )
        if found is None:
            raise _no_state(session)
        return found

    # -- when the shadow may do something -----------------------------------------------------

    async def round(self, session: str, turn: str) -> RoundReply:
        """The engine has paused between two of its rounds: the reader uses what its ration allows.

        Call it after the turn's first token was told; before that it is over at once.

        Raises:
            NotFoundError: no such turn. ConflictError: it has ended.
        """
        parts = self._running()
        live = await parts.sessions.line_of_turn(session, turn)
        reading = parts.slot.reading
        if reading is None or live.decodes_since_s is None:
            return RoundReply(0, 0.0, 0.0)
        rounds = reading.reader.rounds
        opened = await reading.reader.round()
        allowance_s = rounds.ration.allowance_s(self.clock.monotonic())
        left_ms = 0.0 if allowance_s == float("inf") else round(1000 * allowance_s, 3)
        return RoundReply(opened.read, round(1000 * opened.used_s, 3), left_ms)

    def round_from_thread(
        self, session: str, turn: str, *, timeout_s: float | None = None
    ) -> RoundReply:
        """``round`` for an engine's own thread, which waits; never call it on the event loop.

        Raises:
            TimeoutError: it is not over within ``timeout_s``; it goes on.
        """
        assert self._loop is not None, "the runtime is not running"
        asked = asyncio.run_coroutine_threadsafe(self.round(session, turn), self._loop)
        return asked.result(timeout_s)

    def hold(self, owner: str, seconds: float) -> Hold:
        """Keep the shadow from doing anything unasked, for so long at most.

        Raises:
            InvalidInputError: no owner, or longer than ``hold_s``. BusyError: too many are on.
        """
        return self._running().windows.holds.begin(owner, seconds)

    def extend_hold(self, hold: str, seconds: float) -> Hold:
        """Let a hold last for so long from now on.

        Raises:
            NotFoundError: it is not on (any more). InvalidInputError: longer than ``hold_s``.
        """
        return self._running().windows.holds.extend(hold, seconds)

    def end_hold(self, hold: str) -> Hold:
        """End a hold before its time.

        Raises:
            NotFoundError: it is not on (any more).
        """
        return self._running().windows.holds.end(hold)

    # -- the model ----------------------------------------------------------------------------

    async def load(self, *, timeout_s: float = LOAD_S) -> SlotStatus:
        """Load the model in the next idle window; at once when it is loaded already.

        Raises:
            OutOfRoomError: weights and cap do not fit the free memory. ModelError: it cannot be
                loaded, or there is none. AskTimeoutError: no idle window came in time.
            ConflictError: somebody released it meanwhile.
        """
        return await self._running().slot.load(timeout_s=timeout_s)

    async def release(self) -> SlotStatus:
        """Finish the work in flight, spill every resident state, and give the model's memory back.

        The next turn whose profile is read brings it back.

        Raises:
            ModelError: there is no model, or it was handed in. ConflictError: somebody loaded it
                again meanwhile.
        """
        return await self._running().slot.release()


def _roster(parts: Parts) -> Roster | None:
    reading = parts.slot.reading
    return reading.reader.roster if reading is not None else None


def _no_state(session: str) -> NotFoundError:
    return NotFoundError(
        f"no state of session {session!r} is resident", field="session", found=session
    )

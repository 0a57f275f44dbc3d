"""A client that feeds one session for ever, remembers what was acknowledged, and never gives up.

Law: what went unanswered is sent again, word for word, until a server says yes. A session does one
thing at a time, so beyond what was acknowledged at most one message (or one run of a feed) can be
in the journal.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from bench.faults_book import Finding, SessionBook, TurnBook
from shadow_reader.errors import (
    AskTimeoutError,
    BusyError,
    JournalError,
    NotFoundError,
    OutOfRoomError,
    ShadowError,
    ShutDownError,
    UnreachableError,
)
from shadow_reader.http.client import ShadowClient
from shadow_reader.shadow.questions import Reply
from shadow_reader.shadow.sessions import Accepted

T = TypeVar("T")

IDS_BELOW: Final = 1000
LONGEST: Final = 2400
SYSTEM: Final = tuple(random.Random(1).randrange(IDS_BELOW) for _ in range(400))
"""Where all sessions begin: an agent's system prompt and tools."""

_AGAIN_S: Final = 0.03
_GONE: Final = (UnreachableError, ShutDownError)
_FULL: Final = (JournalError, OutOfRoomError, BusyError)


@dataclass(slots=True)
class Tally:
    """What happened so far."""

    acknowledged: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    answers: int = 0
    erasures: int = 0
    refusals: Counter[str] = field(default_factory=Counter)


class Line:
    """The way to whatever server runs now; closed while there is none, or while all must wait.

    Attributes:
        waiting: how many wait for it.
    """

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._client: ShadowClient | None = None
        self.waiting = 0

    def open(self, client: ShadowClient) -> None:
        """Let everybody speak to this server."""
        self._client = client
        self._open.set()

    def close(self) -> None:
        """Let nobody begin to say anything."""
        self._open.clear()

    async def client(self) -> ShadowClient:
        """The server to speak to, once there is one."""
        self.waiting += 1
        try:
            await self._open.wait()
        finally:
            self.waiting -= 1
        assert self._client is not None
        return self._client


class Talker:
    """One session's client.

    Args:
        cuts: the part of all messages whose connection is cut while they are on their way.

    Attributes:
        erase_next: erase the session when its turn is over.
    """

    def __init__(
        self, session: str, line: Line, tally: Tally, seed: str, *, cuts: float = 0.02
    ) -> None:
        self.book = SessionBook(session)
        self._line = line
        self._tally = tally
        self._choices = random.Random(seed)
        self._cuts = cuts
        self._turns = 0
        self.erase_next = False

    async def run(self) -> None:
        """Turn after turn, until cancelled."""
        while True:
            await self._turn()
            if self.erase_next or self._choices.random() < 0.03:
                self.erase_next = False
                await self._erase()

    # -- one turn -----------------------------------------------------------------------------

    async def _turn(self) -> None:
        choose = self._choices
        await self._prompt()
        if choose.random() < 0.5:
            await self._first_token()
        if choose.random() < 0.3:
            await self._feed_outputs(choose.randrange(1, 25))
        else:
            for _ in range(choose.randrange(0, 8)):
                await self._output()
                if choose.random() < 0.08:
                    await self._ask()
        if choose.random() < 0.8:
            await self._end()
        if choose.random() < 0.3:
            await self._ask()
        await asyncio.sleep(choose.uniform(0, 0.15))

    async def _prompt(self) -> None:
        choose = self._choices
        self._turns += 1
        before = self.book.known
        keep, prompt = self._next_prompt(before)
        turn = TurnBook(f"t{self._turns}", prompt)
        self.book.turns.append(turn)
        short = keep if choose.random() < 0.5 else None

        async def send(client: ShadowClient) -> Accepted:
            ids = prompt if short is None else prompt[short:]
            return await client.prompt(
                self.book.session, ids, turn=turn.turn, keep=short, router="code"
            )

        self._must_be(await self._say(send), known=len(prompt), output=0)
        turn.opened = True
        if choose.random() < 0.05:
            self._must_be(await self._say(send), known=len(prompt), output=0)
            self._tally.faults["a prompt said twice"] += 1

    def _next_prompt(self, before: list[int]) -> tuple[int, list[int]]:
        """How much of what was sent it keeps, and the whole prompt."""
        choose = self._choices
        if not before:
            shared = choose.choice([0, 200, 400, 400])
            return 0, [*SYSTEM[:shared], *self._new(choose.randrange(1, 500))]
        size = len(before)
        kind = choose.random()
        if size > LONGEST or kind < 0.06:
            keep = choose.randrange(0, size // 2 + 1)
        elif kind < 0.16:
            keep = size - min(size, choose.randrange(1, 80))
        elif kind < 0.22:
            keep = min(size, choose.randrange(0, 60))
        elif kind < 0.30:
            keep = min(size, len(choose.choice(self.book.turns).prompt))
        else:
            keep = size
        new = self._new(choose.randrange(0 if keep else 1, 220))
        return keep, before[:keep] + new

    async def _first_token(self) -> None:
        turn = self.book.turns[-1]
        await self._say(lambda client: client.first_token(self.book.session, turn.turn))
        turn.first = True

    async def _output(self) -> None:
        """A delta; now and then with ids that were said before."""
        choose, turn = self._choices, self.book.turns[-1]
        back = choose.choice([0, 0, 0, 0, 1, 5])
        offset = max(0, len(turn.output) - back)
        turn.output += self._new(choose.choice([1, 2, 4, 30]))
        ids = turn.output[offset:]
        accepted = await self._say(
            lambda client: client.output(self.book.session, turn.turn, offset=offset, ids=ids)
        )
        turn.heard = len(turn.output)
        self._must_be(accepted, known=len(self.book.known), output=turn.heard)

    async def _feed_outputs(self, count: int) -> None:
        """Several deltas through ``/v1/feed``; what was not answered is fed again."""
        turn = self.book.turns[-1]
        cuts = [len(turn.output)]
        for _ in range(count):
            turn.output += self._new(self._choices.randrange(1, 9))
            cuts.append(len(turn.output))
        deltas = list(itertools.pairwise(cuts))

        async def feed(client: ShadowClient) -> None:
            left = [(a, b) for a, b in deltas if b > turn.heard]

            async def messages() -> AsyncIterator[dict[str, Any]]:
                for start, stop in left:
                    yield {
                        "kind": "output",
                        "session": self.book.session,
                        "turn": turn.turn,
                        "offset": start,
                        "ids": turn.output[start:stop],
                    }

            async with contextlib.aclosing(client.feed(messages())) as replies:
                for _, stop in left:
                    reply = await anext(replies)
                    if reply.error is not None:
                        raise reply.error
                    turn.heard = stop
                    self._tally.acknowledged += 1

        await self._say(feed, counts=False)

    async def _end(self) -> None:
        turn = self.book.turns[-1]
        turn.reason = self._choices.choice(["stop", "length", "abort"])
        reason, produced = turn.reason, len(turn.output)
        await self._say(
            lambda client: client.end(
                self.book.session, turn.turn, reason=reason, produced=produced
            )
        )
        turn.ended = True

    async def _ask(self) -> None:
        """A question; one that no server answers in time is let be."""
        choose = self._choices
        question = self._new(choose.randrange(1, 40))
        wait = choose.choice(["now", "fresh"])

        async def ask(client: ShadowClient) -> Reply | None:
            with contextlib.suppress(AskTimeoutError, OutOfRoomError):
                return await client.ask(
                    self.book.session, question, ["yes", "no"], wait=wait, timeout_s=2.0
                )
            return None

        client = await self._line.client()
        try:
            reply = await self._once(ask, client)
        except (*_GONE, *_FULL):
            return
        if isinstance(reply, Reply):
            self._tally.answers += 1
            label = reply.label
            self.book.answers[reply.question] = label, reply.probabilities[label]

    async def _erase(self) -> None:
        self.book.erasing = True

        async def erase(client: ShadowClient) -> None:
            with contextlib.suppress(NotFoundError):
                await client.erase(self.book.session)

        await self._say(erase)
        if self.book.erasing:
            self.book.was_erased()
        self._tally.erasures += 1

    # -- saying things ------------------------------------------------------------------------

    async def _say(self, send: Callable[[ShadowClient], Awaitable[T]], *, counts: bool = True) -> T:
        """Say it until it is acknowledged."""
        while True:
            await asyncio.sleep(self._choices.uniform(0, 0.012))
            client = await self._line.client()
            try:
                if self._choices.random() < self._cuts:
                    await self._cut(send, client)
                    continue
                found = await send(client)
            except _GONE:
                await asyncio.sleep(_AGAIN_S)
            except _FULL as error:
                self._tally.refusals[error.code] += 1
                await asyncio.sleep(_AGAIN_S)
            else:
                self._tally.acknowledged += counts
                return found

    async def _cut(
        self, send: Callable[[ShadowClient], Awaitable[T]], client: ShadowClient
    ) -> None:
        """Begin to say it, and go away at a random moment."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._choices.choice([0.0, 0.0005, 0.002, 0.01])):
                await send(client)
        self._tally.faults["connection cut"] += 1

    async def _once(
        self, send: Callable[[ShadowClient], Awaitable[T]], client: ShadowClient
    ) -> T | None:
        if self._choices.random() < 3 * self._cuts:
            await self._cut(send, client)
            return None
        return await send(client)

    def _must_be(self, accepted: Accepted, *, known: int, output: int) -> None:
        if (accepted.known, accepted.output) != (known, output):
            what = f"{accepted} where {known} ids were known, {output} of them output"
            self._tally.findings.append(Finding("strange", self.book.session, what))

    def _new(self, count: int) -> list[int]:
        return [self._choices.randrange(IDS_BELOW) for _ in range(count)]


def reason_of(error: BaseException) -> str:
    """What ended a talker, for the report."""
    code = error.code if isinstance(error, ShadowError) else type(error).__name__
    return f"{code}: {error}"

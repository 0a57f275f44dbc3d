"""The demo itself: a real server, a real journal, a session fed to it, a kill in the middle.

Law: nothing is taken from the server's word alone. What survived the kill is read from the journal
file, and whether the state is exact is said by another process that never saw the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn, TypeAlias

import orjson

from shadow_reader.cli.demo_plan import DOING, DONE, STUCK, DemoPlan, DemoQuestion
from shadow_reader.cli.engine_feed import EngineFeed
from shadow_reader.cli.server_process import (
    ProcessError,
    ServerProcess,
    command_line,
    environment,
    last_lines,
)
from shadow_reader.clock import Clock, SystemClock
from shadow_reader.config import Settings
from shadow_reader.errors import ShadowError, UnreachableError
from shadow_reader.events.ids import Ids
from shadow_reader.http.client import ShadowClient
from shadow_reader.replay.rebuild import journaled_session
from shadow_reader.replay.turns import RecordedTurn
from shadow_reader.shadow.questions import Reply
from shadow_reader.shadow.sessions import Accepted
from shadow_reader.shadow.status import SessionStatus, Status
from shadow_reader.store.reader import JournalReader

Say: TypeAlias = Callable[[str], None]
Show: TypeAlias = Callable[[int, SessionStatus | None], None]
Asked: TypeAlias = Callable[[DemoQuestion, str, Reply], None]

POLL_S: Final = 0.1
FRESH_S: Final = 300.0
ASK_S: Final = 120.0


@dataclass(slots=True)
class Survival:
    """What was acknowledged before the kill, and what the journal held after it.

    ``intact``: the journal's ids are, id for id, what was sent, and none that was acknowledged is
    missing.
    """

    turn: str = ""
    acknowledged: int = 0
    acknowledged_output: int = 0
    present: int = 0
    present_output: int = 0
    intact: bool = False


@dataclass(slots=True)
class DemoResult:
    """Everything that the demo found out."""

    status: SessionStatus
    journal_bytes: int
    asks: list[dict[str, Any]]
    killed: Survival
    digest: str
    rebuild: dict[str, Any]
    seconds: float

    @property
    def exact(self) -> bool:
        """Every bit of the server's state and every journaled digest agree with a fresh prefill."""
        proof = self.rebuild["sessions"][0]
        state = proof["state"]
        return bool(
            self.rebuild["exact"]
            and state is not None
            and state["exact"]
            and state["fresh"] == self.digest
            and self.status.mismatches == 0
        )


@dataclass(slots=True)
class Demo:
    """One run.

    Attributes:
        settings: of the server and of the proof; journal and port are the demo's own.
        folder: holds the journal, the log and the exported state.
        session: its id at the server.
        say, show, asked: told what happens.
    """

    settings: Settings
    config: Path | None
    folder: Path
    session: str
    plan: DemoPlan
    seed: int
    say: Say
    show: Show
    asked: Asked
    server: ServerProcess | None = None
    _client: ShadowClient | None = None
    _asks: list[dict[str, Any]] = field(default_factory=list)
    _killed: Survival = field(default_factory=Survival)
    _acknowledged: Accepted | None = None
    _done: int = 0
    _clock: Clock = field(default_factory=SystemClock)
    _started_s: float = 0.0

    def __post_init__(self) -> None:
        self._started_s = self._clock.monotonic()

    @property
    def client(self) -> ShadowClient:
        """A client of the server that runs now."""
        assert self._client is not None, "the server runs"
        return self._client

    async def run(self, turns: Iterator[RecordedTurn]) -> DemoResult:
        """Feed all turns, with a kill in between, and prove the state exact."""
        await self._while_it_reads(self._feed_all(turns))
        status = await self.client.session(self.session)
        self.show(self._done, status)
        state = self.folder / "state.safetensors"
        size = await self.client.state(self.session, state)
        digest = (await self.client.digest(self.session)).digest
        self.say(f"proof: exported the state ({size:,} bytes); a fresh prefill in another process")
        rebuild = await self._rebuild(state)
        service = await self.client.status()
        seconds = self._clock.monotonic() - self._started_s
        return DemoResult(
            status, service.journal.bytes, self._asks, self._killed, digest, rebuild, seconds
        )

    async def close(self, *, keep: bool = False) -> None:
        """Stop the server, unless it is to stay."""
        if self._client is not None:
            await self._client.close()
        if self.server is not None and not keep:
            await self.server.stop()

    async def _feed_all(self, turns: Iterator[RecordedTurn]) -> None:
        """All turns, with questions and a kill in between, until the shadow has read everything."""
        for number in range(self.plan.turns):
            turn: RecordedTurn = await asyncio.to_thread(next, turns)
            await self._turn(number, turn)
            await asyncio.sleep(self.plan.gap_s)
            if number == self.plan.ask_after:
                await self._ask(DOING, "fresh", f"after turn {number + 1}")
        await self.client.wait_fresh(self.session, timeout_s=FRESH_S)
        await self._ask(DONE, "fresh", "at the end")

    async def _while_it_reads(self, work: Coroutine[Any, Any, None]) -> None:
        """Do ``work``; give it up as soon as the server says that its reader stopped.

        Raises:
            ProcessError: it did; says why. Whatever the work raised.
        """
        working = asyncio.create_task(work, name="demo")
        watching = asyncio.create_task(self._watch(), name="demo-watch")
        try:
            await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
            await (watching if watching.done() else working)
        finally:
            working.cancel()
            watching.cancel()
            await asyncio.gather(working, watching, return_exceptions=True)

    # -- one turn -----------------------------------------------------------------------------

    async def _turn(self, number: int, turn: RecordedTurn) -> None:
        start: int | None = None
        if number == self.plan.ask_within:
            stop = len(turn.output) // 3
            await self._feed().send(turn, self._heard, start=start, stop=stop)
            await self._ask(STUCK, "now", f"in the middle of turn {number + 1}")
            start = stop
        if number == self.plan.kill_within:
            await self._kill_within(number, turn, start)
            start = min(self._killed.acknowledged_output, self._killed.present_output)
        await self._feed().send(turn, self._heard, start=start)
        self._done = number + 1

    async def _kill_within(self, number: int, turn: RecordedTurn, start: int | None) -> None:
        """Send more than half of the output, and kill the server when half is acknowledged."""
        assert self.server is not None
        server = self.server
        half = len(turn.output) // 2

        def heard(accepted: Accepted) -> None:
            self._heard(accepted)
            if accepted.output >= half:
                server.kill()

        with contextlib.suppress(UnreachableError):
            await self._feed().send(turn, heard, start=start, stop=3 * len(turn.output) // 4)
        await server.gone()
        last = self._acknowledged
        assert last is not None, "the kill follows an acknowledgement"
        assert last.turn == turn.turn, f"it was one of turn {last.turn}"
        self.say(f"kill -9 in turn {number + 1}: {last.known:,} ids were acknowledged")
        await self.start()
        self._killed = await self._survival(turn, last)
        k = self._killed
        word = "nothing is missing" if k.intact else "IDS ARE MISSING"
        self.say(f"restarted on the same journal: {k.present:,} ids are there, {word}")

    async def _survival(self, turn: RecordedTurn, last: Accepted) -> Survival:
        """Compare the journal's ids with those that were sent."""
        server_says = await self.client.session(self.session)
        async with await JournalReader.open(self.settings.journal) as journal:
            view = (await journaled_session(journal, server_says.session)).view
        present = view.output_length
        sent = Ids.of(turn.prompt + turn.output[:present])
        intact = view.known == sent and len(view.known) >= last.known and present >= last.output
        return Survival(
            turn=turn.turn,
            acknowledged=last.known,
            acknowledged_output=last.output,
            present=len(view.known),
            present_output=present,
            intact=intact and server_says.known == len(view.known),
        )

    # -- parts --------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start a server; the one before it, if any, has ended."""
        gone, self._client = self._client, None
        if gone is not None:
            await gone.close()
        self.show(self._done, None)
        self.server = await ServerProcess.start(
            self.settings, folder=self.folder, config=self.config
        )
        client = ShadowClient(self.server.url, self.settings.token)
        await client.open()
        self._client = client
        self.say(f"server {self.server.url} (process {self.server.pid})")

    def _feed(self) -> EngineFeed:
        return EngineFeed(self.client, self.session, rate=self.plan.rate, seed=self.seed)

    def _heard(self, accepted: Accepted) -> None:
        self._acknowledged = accepted

    async def _ask(self, question: DemoQuestion, wait: str, when: str) -> None:
        reply = await self.client.ask(
            self.session, question.question, question.choices, wait=wait, timeout_s=ASK_S
        )
        asked = {"when": when, "wait": wait, "question": question.question}
        answer = {
            "label": reply.label,
            "probabilities": reply.probabilities,
            "position": reply.position,
            "behind": reply.behind,
            "lag_ms": round(reply.lag_ms, 3),
            "forward_ms": round(reply.forward_ms, 3),
        }
        self._asks.append(asked | answer)
        self.asked(question, when, reply)

    async def _watch(self) -> NoReturn:
        """Show position and backlog until cancelled; the server may be away for a while.

        Raises:
            ProcessError: the server says that its reader stopped.
        """
        while True:
            status: Status | None = None
            with contextlib.suppress(ShadowError):
                if self._client is not None:
                    status = await self._client.status()
            if status is not None:
                self._look(status)
            await asyncio.sleep(POLL_S)

    def _look(self, status: Status) -> None:
        if status.state == "failed":
            log = last_lines(self.server.log) if self.server is not None else ""
            raise ProcessError(f"the server reads no more: {status.reason}", log=log)
        for session in status.sessions:
            if session.session == self.session:
                self.show(self._done, session)

    async def _rebuild(self, state: Path) -> dict[str, Any]:
        """The proof, by a process that knows only the journal and the exported state."""
        words = ["rebuild", "--journal", str(self.settings.journal), "--session", self.session]
        log = self.folder / "rebuild.log"
        with log.open("wb") as err:
            process = await asyncio.create_subprocess_exec(
                *command_line(self.config, *words, "--state", str(state), "--json"),
                env=environment(self.settings, os.environ),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=err,
            )
            try:
                out, _ = await process.communicate()
            except BaseException:
                process.kill()
                await process.wait()
                raise
        return _proof(out, process.returncode, log)


def _proof(out: bytes, code: int | None, log: Path) -> dict[str, Any]:
    try:
        body = orjson.loads(out)
    except orjson.JSONDecodeError as error:
        raise ProcessError(f"rebuild ended with status {code}", log=last_lines(log)) from error
    if "sessions" not in body:
        message = body.get("error", {}).get("message", "it said nothing")
        raise ProcessError(f"rebuild failed: {message}", log=last_lines(log))
    return dict(body)

"""One server at a time on one journal, its clients, and the checks after everything that happens.

Law: nothing is taken from a server's word alone. What is in the journal is read from its file; what
a state must be is said by a process that never saw the server.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from bench.faults_book import Finding
from bench.faults_nursery import Child, Nursery
from bench.faults_talk import Line, Talker, Tally, reason_of
from shadow_reader.errors import AskTimeoutError, NotFoundError, ShadowError
from shadow_reader.events.branches import MAX_BRANCHES, line_names, split_name
from shadow_reader.http.client import ShadowClient
from shadow_reader.store.reader import JournalReader

START_S: Final = 60.0
STOP_S: Final = 60.0
FRESH_S: Final = 60.0
PARK_S: Final = 30.0
POLL_S: Final = 0.005
PROBE_S: Final = 10.0
GIB: Final = 1024**3

SETTINGS: Final[dict[str, Any]] = {
    "model": "random:tiny",
    "threads": 1,
    "grid_ids": 64,
    "cap_gb": 5 * 2**20 / GIB,
    "disk_gb": 24 * 2**20 / GIB,
    "foreground": "lease",
    "port": 0,
}
"""Memory for two or three grown sessions, so that states come and go all the time."""


class Stuck(Exception):  # noqa: N818  # it names what is, not an error of the product's
    """The server did not do what it must within its time; says what."""


@dataclass(slots=True)
class World:
    """Everything around the servers; made by ``world``.

    Attributes:
        folder: gets logs and results. disk: gets journal and snapshots.
        server: the one that runs now. proved: sessions whose state was compared.
    """

    folder: Path
    disk: Path
    nursery: Nursery
    settings: dict[str, Any]
    choices: random.Random
    tally: Tally = field(default_factory=Tally)
    line: Line = field(default_factory=Line)
    talkers: list[Talker] = field(default_factory=list)
    server: Child | None = None
    proved: int = 0
    checkpoints: int = 0
    peak_bytes: int = 0
    _client: ShadowClient | None = None
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _starts: int = 0

    @property
    def journal(self) -> Path:
        """Its file."""
        return self.disk / "shadow.db"

    @property
    def snapshots(self) -> Path:
        """The folder of the snapshots."""
        return self.disk / "snapshots"

    @property
    def log(self) -> Path:
        """Of all servers."""
        return self.folder / "server.log"

    @property
    def all_settings(self) -> dict[str, Any]:
        """A server's."""
        return {**self.settings, "journal": str(self.journal), "disk": str(self.snapshots)}

    @property
    def client(self) -> ShadowClient:
        """A client of the server that runs now."""
        assert self._client is not None, "a server was started"
        return self._client

    # -- servers ------------------------------------------------------------------------------

    async def fork_server(self) -> Path:
        """Begin to start one; the file that says when it listens."""
        assert self.server is None or not self.server.runs, "one at a time"
        self._starts += 1
        ready = self.folder / f"ready-{self._starts}.json"
        self.server = await self.nursery.fork(
            "serve", settings=self.all_settings, ready=str(ready), log=str(self.log)
        )
        return ready

    async def start(self) -> None:
        """Start one and wait until it is ready; the line stays closed."""
        ready = await self.fork_server()
        assert self.server is not None
        began = time.monotonic()
        while not ready.exists():
            if not self.server.runs:
                raise Stuck(f"a server ended with {self.server.ended.result()} at its start")
            if time.monotonic() - began > START_S:
                raise Stuck(f"a server was not ready within {START_S:g} s")
            await asyncio.sleep(POLL_S)
        url = json.loads(ready.read_bytes())["url"]
        ready.unlink()
        await self.use(url)

    async def use(self, url: str) -> None:
        """Speak to this server from now on."""
        if self._client is not None:
            await self._client.close()
        self._client = ShadowClient(url)
        await self._client.open()

    async def kill(self) -> None:
        """SIGKILL, and let every client notice."""
        assert self.server is not None
        self.line.close()
        self.server.signal(signal.SIGKILL)
        await self.server.ended
        await self.park()

    async def stop(self) -> None:
        """SIGTERM; it must end in order."""
        assert self.server is not None
        self.server.signal(signal.SIGTERM)
        await self.stopped()

    async def stopped(self) -> None:
        """Wait for the end in order that a SIGTERM began."""
        assert self.server is not None
        try:
            async with asyncio.timeout(STOP_S):
                status = await asyncio.shield(self.server.ended)
        except TimeoutError:
            self.server.signal(signal.SIGKILL)
            raise Stuck(f"a server did not end within {STOP_S:g} s of its SIGTERM") from None
        self.line.close()
        if status != 0:
            raise Stuck(f"a server ended its orderly stop with {status}")
        await self.park()

    # -- clients ------------------------------------------------------------------------------

    def talk(self, sessions: int, *, seed: int, cuts: float = 0.02) -> None:
        """Begin to feed so many sessions as soon as the line is open."""
        for number in range(sessions):
            name = f"s{number}"
            talker = Talker(name, self.line, self.tally, f"{seed}-{number}", cuts=cuts)
            self.talkers.append(talker)
            self._tasks.append(asyncio.create_task(talker.run(), name=name))

    def go(self) -> None:
        """Let the clients speak."""
        self.line.open(self.client)

    async def park(self) -> None:
        """Let nobody begin anything, and wait until nobody is at anything."""
        self.line.close()
        try:
            async with asyncio.timeout(PARK_S):
                while self.line.waiting < len(self.talkers):
                    self.look_after()
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise Stuck(f"a message was not answered within {PARK_S:g} s") from None

    def look_after(self) -> None:
        """Raise what ended a client, if one ended."""
        for task in self._tasks:
            if task.done() and (error := task.exception()) is not None:
                raise Stuck(f"client {task.get_name()} gave up: {reason_of(error)}") from error

    # -- checks -------------------------------------------------------------------------------

    async def check(self) -> None:
        """Everything acknowledged is in the journal's file, once; the disk is under its cap."""
        async with await JournalReader.open(self.journal) as reader:
            newest = await reader.newest_seq()  # lines are read one after the other
            for talker in self.talkers:
                entries = [
                    entry
                    for name in line_names(talker.book.session, MAX_BRANCHES)
                    async for entry in reader.entries(session=name)
                    if entry.seq <= newest
                ]
                self.tally.findings += talker.book.check(entries)
        used, cap = _bytes_below(self.snapshots), int(self.settings["disk_gb"] * GIB)
        if used > cap:
            what = f"the snapshots take {used} bytes, their cap is {cap}"
            self.tally.findings.append(Finding("strange", "", what))

    async def probe(self) -> None:
        """Some session answers at once."""
        names = [talker.book.session for talker in self.talkers if talker.book.turns]
        if not names:
            return
        with suppress(NotFoundError):  # its erasure was committed, its prompt was not
            await self.client.ask(
                self.choices.choice(names), [1, 2, 3], ["yes", "no"], wait="now", timeout_s=PROBE_S
            )

    async def prove(self) -> None:
        """Every line's state is a fresh prefill's, bit for bit. Nobody speaks meanwhile."""
        async with await JournalReader.open(self.journal) as reader:
            names = [row.session for row in await reader.sessions()]
        digests = {name: await self._digest(_exactly(name)) for name in names}
        await self._look_at_status()
        await self._look_for_leftovers()
        for proof in await self._proofs():
            session = proof["session"]
            found = digests.get(session)
            if found is None:
                found = self._nothing_read(proof)
            if found != (proof["position"], proof["digest"]):
                self._differs(session, f"{found}, fresh {proof['position']} {proof['digest']}")
            for position in proof["differing"]:
                self._differs(session, f"the checkpoint journaled at {position}")
            self.proved += 1
            self.checkpoints += proof["checkpoints"]

    async def _digest(self, session: str) -> tuple[int, str] | None:
        """Of the state once it is fresh; None where there is no session, or no state."""
        for _ in range(5):
            try:
                # A question makes it the last one heard of: it may push the others out.
                await self.client.ask(session, [7], ["yes", "no"], timeout_s=FRESH_S)
                status = await self.client.wait_fresh(session, timeout_s=FRESH_S)
                if not status.committed:
                    return None
                found = await self.client.digest(session)
            except NotFoundError:
                if not await self._is_there(session):
                    return None
            except AskTimeoutError as error:
                status = await self.client.session(session)
                raise Stuck(f"{error.message}; {status}") from error
            else:
                if found.position == status.committed:
                    return found.position, found.digest
        raise Stuck(f"the state of {session} does not stay for a digest")

    async def _is_there(self, session: str) -> bool:
        try:
            await self.client.session(session)
        except NotFoundError:
            return False
        return True

    async def _look_at_status(self) -> None:
        status = await self.client.status()
        if status.state != "ready":
            raise Stuck(f"the server is {status.state}: {status.reason}")
        assert status.model is not None
        memory = status.model.memory
        self.peak_bytes = max(self.peak_bytes, memory.peak_bytes)
        if memory.peak_bytes > memory.cap_bytes:
            what = f"memory went to {memory.peak_bytes}, its cap is {memory.cap_bytes}"
            self.tally.findings.append(Finding("strange", "", what))
        for session in status.sessions:
            if session.mismatches:
                self._differs(session.session, f"{session.mismatches} digests, says the server")

    async def _look_for_leftovers(self) -> None:
        """No snapshot is left of a session that was erased for sure."""
        async with await JournalReader.open(self.journal) as reader:
            there = {row.session for row in await reader.sessions()}
        for talker in self.talkers:
            session = talker.book.session
            gone = session not in there and not talker.book.erasing
            names = line_names(session, MAX_BRANCHES)
            if gone and any(folder_of(self.snapshots, name).exists() for name in names):
                self.tally.findings.append(Finding("strange", session, "an erased one's snapshot"))

    async def _proofs(self) -> Sequence[dict[str, Any]]:
        result = self.folder / "proof.json"
        child = await self.nursery.fork(
            "prove",
            settings=self.settings,
            journal=str(self.journal),
            result=str(result),
            log=str(self.folder / "proof.log"),
        )
        status = await child.ended
        if status != 0:
            raise Stuck(f"the proof ended with {status}: {last_lines(self.folder / 'proof.log')}")
        found: list[dict[str, Any]] = json.loads(result.read_bytes())
        result.unlink()
        return found

    def _nothing_read(self, proof: dict[str, Any]) -> tuple[int, str] | None:
        """Where there is no state, nothing could be read."""
        return (0, proof["digest"]) if proof["position"] == 0 else None

    def _differs(self, session: str, what: str) -> None:
        self.tally.faults["NOT EXACT"] += 1
        self.tally.findings.append(Finding("strange", session, f"not exact: {what}"))

    async def close(self) -> None:
        """End clients and server."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.server is not None and self.server.runs:
            self.server.signal(signal.SIGKILL)
            await self.server.ended
        if self._client is not None:
            with suppress(ShadowError):
                await self._client.close()


@asynccontextmanager
async def world(
    folder: Path, nursery: Nursery, *, seed: int, disk: Path | None = None
) -> AsyncIterator[World]:
    """A world without clients or server yet; at the end neither is left."""
    made = World(_made(folder), disk or folder, nursery, dict(SETTINGS), random.Random(seed))
    try:
        yield made
    finally:
        await made.close()


def _exactly(name: str) -> str:
    """The line of that name, whichever its session speaks of."""
    session, branch = split_name(name)
    return f"{session}~branch{branch or 0}"


def folder_of(root: Path, session: str) -> Path:
    """Where a session's snapshot lies; its name is not the session's."""
    return root / blake2b(session.encode(), digest_size=16).hexdigest()


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def last_lines(log: Path, lines: int = 15) -> str:
    """The end of a log."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return ""


def _bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() else 0
    return total

"""Stand-ins whose arithmetic is cheap: an engine, a vocabulary, a clock.

The engine's state is a running hash of the ids read, so two states are equal exactly when the same
ids were read; everything else (grid, cap, checkpoints, rewinds, forks) follows ``engine.Engine``.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Any, ParamSpec, TypeVar

import async_solipsism
import numpy as np
from numpy.typing import NDArray

from shadow_reader.errors import OutOfRoomError, TooLargeError
from shadow_reader.events.ids import EMPTY, Ids
from shadow_reader.events.snapshots import Manifest, RawTensor, Span
from shadow_reader.events.view import MAX_CHECKPOINTS
from shadow_reader.shadow.engine import Aligned, EngineIdentity, EngineStats, StateStats
from shadow_reader.shadow.snapshot_rules import (
    check_manifest,
    read_ids,
    refusal,
    restorable_position,
)
from shadow_reader.shadow.vocabulary import PlainCodec, Vocabulary
from tests.fake_snapshots import FakePinned, FakeRestore

P = ParamSpec("P")
T = TypeVar("T")

EFFORT = int(os.environ.get("SHADOW_EFFORT", "1"))
"""Multiplies the examples of the longer properties."""

GRID = 8
VOCABULARY = 1000
LAYERS = 4
HIDDEN = 8
CONTEXT_IDS = 4096
START_WALL = 1_700_000_000.0


class LoopClock:
    """The running loop's own time, virtual or not; the wall can be made to jump."""

    def __init__(self) -> None:
        self.jumped = 0.0

    def wall(self) -> float:
        """Unix seconds."""
        return START_WALL + self.jumped + asyncio.get_running_loop().time()

    def monotonic(self) -> float:
        """The loop's seconds."""
        return asyncio.get_running_loop().time()


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run under virtual time: sleeping costs nothing, and sleeping for ever is an error.

    Fails when anything was left for the loop's exception handler (a task that died unseen).
    """
    unseen: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=async_solipsism.EventLoop) as runner:
        runner.get_loop().set_exception_handler(lambda _loop, context: unseen.append(context))
        result = runner.run(main)
    assert not unseen, unseen
    return result


def virtual(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Run an async test under virtual time."""

    def run() -> None:
        async def main() -> None:
            await test()

        run_virtual(main())

    run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
    return run


async def steps(count: int = 20) -> None:
    """Let every other task run for a while, without time going on."""
    for _ in range(count):
        await asyncio.sleep(0)


@dataclass(slots=True)
class FakeState:
    """One session's state: the ids read, and the checkpoints as (position, digest)."""

    read: Ids = EMPTY
    checkpoints: list[int] = field(default_factory=list)


END = 258
"""``<|im_end|>`` of ``fake_vocabulary``."""


class FakeWriting:
    """Writes what its engine says, byte by byte, and then the end of the message.

    Attributes:
        base: the ids that it stands on.
    """

    def __init__(self, engine: FakeEngine, session: str, base: Sequence[int], most: int) -> None:
        self._engine, self._session, self.base = engine, session, tuple(base)
        self._ids = [*engine.says.encode(), END][:most]
        self.released = False

    def next(self, count: int, stops: Collection[int]) -> tuple[int, ...]:
        self._engine._begin("next", self._session)
        assert not self.released
        found = tuple(itertools.takewhile(lambda one: one not in stops, self._ids[:count]))
        self._ids = self._ids[len(found) :] if len(found) == count else []
        return found

    def release(self) -> None:
        self.released = True


class FakeEngine:
    """Holds states like the real one; a page, a state, a checkpoint and a fork are one unit each.

    Attributes:
        cap: most units.
        before: called with (method, session) before anything happens; may raise or block.
        calls: (method, session) as they came.
        running: how many methods run at this moment.
        says: what is written on forks. writings: every one that was begun.
        shares: a session at zero, or gone back, starts where another one stands or has a
            checkpoint; what they have in common still counts for each.
    """

    def __init__(self, *, grid: int = GRID, cap: int = 1_000_000, shares: bool = False) -> None:
        self.grid = grid
        self.cap = cap
        self.shares = shares
        self.before: Callable[[str, str], None] = lambda _method, _session: None
        self.calls: list[tuple[str, str]] = []
        self.states: dict[str, FakeState] = {}
        self.restores: list[FakeRestore] = []
        self.peak = 0
        self.closed = 0
        self.says = "It edits a file."
        self.writings: list[FakeWriting] = []

    @property
    def identity(self) -> EngineIdentity:
        return EngineIdentity("fake", "0" * 16, self.grid, "int", "none", "fake", 1)

    @property
    def vocabulary(self) -> int:
        return VOCABULARY

    @property
    def context_ids(self) -> int:
        return CONTEXT_IDS

    @property
    def layers(self) -> int:
        return LAYERS

    @property
    def hidden(self) -> int:
        return HIDDEN

    def align(self, session: str, known: Ids) -> Aligned:
        self._begin("align", session)
        state = self.states.get(session)
        if state is None:
            return self._start(session, known, Aligned(0))
        cut = state.read.common_prefix(known)
        if cut == len(state.read):
            return Aligned(cut)
        state.checkpoints = [c for c in state.checkpoints if c <= cut]
        to = max(state.checkpoints, default=0)
        state.read = known.take(to)
        if not to:
            del self.states[session]
        return self._start(session, known, Aligned(to, cut))

    def read_chunk(self, session: str, known: Ids) -> int:
        self._begin("read_chunk", session)
        state = self.states.get(session) or FakeState()
        start = len(state.read)
        assert state.read.common_prefix(known) == start, "align first"
        assert len(known) >= start + self.grid, "no whole chunk"
        self._room(1 if start else 2)
        state.read = known.take(start + self.grid)
        self.states[session] = state
        return start + self.grid

    def checkpoint(self, session: str) -> str:
        self._begin("checkpoint", session)
        state = self.states[session]
        if len(state.read) not in state.checkpoints:
            if len(state.checkpoints) < MAX_CHECKPOINTS:
                self._room(1)
            state.checkpoints = [*state.checkpoints, len(state.read)][-MAX_CHECKPOINTS:]
        return self.hash_of(state.read)

    def ask(
        self,
        session: str,
        *,
        tail: Ids,
        question: Ids,
        letters: Sequence[int],
        line: int | None = None,
    ) -> tuple[float, ...]:
        self._begin("ask", session)
        state = self.states.get(session) or FakeState()
        self._room(1)
        assert line in (None, 0, len(state.read), *state.checkpoints)
        read = state.read if line is None else state.read.take(line)
        return self.answer_to([*read, *tail, *question], letters)

    def vectors(
        self,
        session: str,
        *,
        tail: Ids,
        layers: Sequence[int],
        last: int,
        line: int | None = None,
    ) -> NDArray[np.float32]:
        self._begin("vectors", session)
        state = self.states.get(session) or FakeState()
        self._room(1)
        assert line in (None, 0, len(state.read), *state.checkpoints)
        assert len(tail) >= 1
        read = state.read if line is None else state.read.take(line)
        return self.vectors_of([*read, *tail], layers, last)

    def write(
        self, session: str, *, tail: Ids, prompt: Ids, most: int, line: int | None = None
    ) -> FakeWriting:
        self._begin("write", session)
        state = self.states.get(session) or FakeState()
        assert line in (None, 0, len(state.read), *state.checkpoints)
        read = state.read if line is None else state.read.take(line)
        self._room(1)
        self.writings.append(FakeWriting(self, session, [*read, *tail, *prompt], most))
        return self.writings[-1]

    def digest(self, session: str) -> str:
        self._begin("digest", session)
        state = self.states.get(session)
        return self.hash_of(state.read if state else EMPTY)

    def export(self, session: str, *, limit_bytes: int) -> bytes:
        self._begin("export", session)
        state = self.states.get(session) or FakeState()
        if 4 * len(state.read) > limit_bytes:
            raise TooLargeError("too large", limit=limit_bytes)
        return state.read.to_bytes()

    def drop(self, session: str, *, erased: bool = False) -> int:
        self._begin("erase" if erased else "drop", session)
        before = self.used
        self.states.pop(session, None)
        return before - self.used

    def give_way(self, sessions: Sequence[str], *, newest: bool = True) -> int:
        self._begin("give_way", sessions[-1] if sessions else "")
        for newest_too in (0, 1) if newest else (0,):
            for session in sessions:
                state = self.states.get(session)
                if state is not None and len(state.checkpoints) > 1 - newest_too:
                    del state.checkpoints[0]
                    return 1
        return 0

    def pin(self, session: str, written: Sequence[Span] = ()) -> FakePinned | None:
        self._begin("pin", session)
        state = self.states.get(session)
        if state is None:
            return None
        step = partial(self._step, session)
        return FakePinned(self.identity, state.read, state.checkpoints, self.hash_of, step, written)

    def begin_restore(
        self, session: str, manifest: Manifest, head: Mapping[str, RawTensor], known: Ids
    ) -> FakeRestore:
        self._begin("begin_restore", session)
        assert session not in self.states, f"session {session!r} has a state"
        check_manifest(manifest, self.identity)
        ids = read_ids(manifest, head, VOCABULARY)
        line = restorable_position(manifest, ids, known)
        if not line:
            raise refusal(manifest, "first other id", ids.common_prefix(known), "above a line")
        self.restores = [one for one in self.restores if one.units]

        def install(read: Ids, marks: list[int]) -> None:
            assert session not in self.states, f"session {session!r} has a state"
            self.states[session] = FakeState(read, marks)

        restore = FakeRestore(
            manifest,
            head,
            ids=ids,
            line=line,
            grid=self.grid,
            room=self._room,
            install=install,
            step=partial(self._step, session),
        )
        self.restores.append(restore)
        return restore

    def host_buffer(self, size: int) -> memoryview:
        return memoryview(bytearray(size))

    def synchronise(self) -> None:
        """There is nothing to wait for."""

    def state_stats(self, session: str) -> StateStats | None:
        state = self.states.get(session)
        if state is None:
            return None
        pages = len(state.read) // self.grid
        units = pages + 1 + len(state.checkpoints)
        return StateStats(len(state.read), pages, units, tuple(state.checkpoints))

    def stats(self) -> EngineStats:
        return EngineStats(self.used, self.peak, self.cap, 0, len(self.states))

    def close(self) -> None:
        self.states.clear()
        self.closed += 1

    @property
    def used(self) -> int:
        """Units taken."""
        states = self.states.values()
        held = sum(len(s.read) // self.grid + 1 + len(s.checkpoints) for s in states)
        return held + sum(restore.units for restore in self.restores)

    def chunks(self, session: str | None = None) -> int:
        """Chunks begun, of one session or of all."""
        return sum(
            method == "read_chunk" and session in (None, name) for method, name in self.calls
        )

    @staticmethod
    def hash_of(ids: Ids) -> str:
        """The digest of a state that read exactly these ids."""
        return blake2b(ids.to_bytes(), digest_size=8).hexdigest()

    @staticmethod
    def vectors_of(ids: Sequence[int], layers: Sequence[int], last: int) -> NDArray[np.float32]:
        """What ``vectors`` gives on top of these ids: each layer's depends on all of them."""
        made = []
        for layer in layers:
            seed = Ids.of([*ids, layer, last]).to_bytes()
            drawn = np.frombuffer(blake2b(seed, digest_size=4 * HIDDEN).digest(), np.uint32)
            made.append(drawn / np.float32(2**31) - np.float32(1.0))
        return np.array(made, np.float32)

    @staticmethod
    def answer_to(ids: Sequence[int], letters: Sequence[int]) -> tuple[float, ...]:
        """What ``ask`` gives on top of these ids: a distribution that depends on all of them."""
        seed = blake2b(Ids.of(ids).to_bytes(), digest_size=4 * len(letters)).digest()
        parts = [1 + int.from_bytes(seed[4 * i : 4 * i + 4], "big") for i in range(len(letters))]
        return tuple(part / sum(parts) for part in parts)

    def _start(self, session: str, known: Ids, aligned: Aligned) -> Aligned:
        """Start where another session has been along ``known``, if that is deeper."""
        if not self.shares:
            return aligned
        lines = [
            line
            for other in self.states.values()
            for line in (*other.checkpoints, len(other.read))
            if line <= other.read.common_prefix(known)
        ]
        line = max(lines, default=0)
        if line <= aligned.committed or self.used + line // self.grid + 1 > self.cap:
            return aligned
        marks = self.states[session].checkpoints if session in self.states else []
        self.states[session] = FakeState(known.take(line), marks)
        self.peak = max(self.peak, self.used)
        return Aligned(line, aligned.cut, line)

    def _begin(self, method: str, session: str) -> None:
        self.calls.append((method, session))
        self.before(method, session)

    def _step(self, session: str, method: str) -> None:
        """A call on a pin or a restore of the session."""
        self._begin(method, session)

    def _room(self, units: int) -> None:
        if self.used + units > self.cap:
            raise OutOfRoomError(f"{self.used} of {self.cap} units are taken, {units} are wanted")
        self.peak = max(self.peak, self.used + units)


def fake_vocabulary() -> Vocabulary:
    """Bytes are ids 0 to 255; the chat's special ids lie above."""
    names = (
        *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"),
        *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    )
    codec = PlainCodec(
        encode=lambda text: list(text.encode()),
        decode=lambda ids: bytes(ids).decode(errors="replace"),
        ids=frozenset(range(256)),
    )
    return Vocabulary(codec, {name: 256 + i for i, name in enumerate(names)}, "fake")


async def settle(*awaitables: Awaitable[Any]) -> list[Any]:
    """The results or exceptions of all, once all are done."""
    return await asyncio.gather(*awaitables, return_exceptions=True)

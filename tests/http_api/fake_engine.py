"""An engine without a model: it counts, and it can be made to wait in the middle of a forward."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from shadow_reader.errors import OutOfRoomError, SnapshotError
from shadow_reader.events.ids import EMPTY, Ids
from shadow_reader.events.snapshots import Manifest, RawTensor, Span
from shadow_reader.events.view import MAX_CHECKPOINTS
from shadow_reader.shadow.engine import (
    Aligned,
    EngineIdentity,
    EngineStats,
    Pinned,
    Restore,
    StateStats,
    Writing,
)

GRID = 64
VOCABULARY = 248_320
LAYERS = 4
HIDDEN = 8
CONTEXT_IDS = 4096


class FakeEngine:
    """Reads instantly unless ``gate`` is cleared; every answer prefers the first choice.

    Attributes:
        known: what was read of each session. marks: where its checkpoints are.
    """

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.asked = threading.Event()
        self.known: dict[str, Ids] = {}
        self.marks: dict[str, tuple[int, ...]] = {}

    @property
    def identity(self) -> EngineIdentity:
        return EngineIdentity("fake", "0" * 16, GRID, "float32", "cpu", "test", 1)

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
        read = self.known.get(session, EMPTY)
        agree = read.common_prefix(known)
        if agree == len(read):
            return Aligned(len(read))
        marks = tuple(mark for mark in self.marks.get(session, ()) if mark <= agree)
        to = max(marks, default=0)
        self.known[session], self.marks[session] = known.take(to), marks
        return Aligned(to, agree)

    def read_chunk(self, session: str, known: Ids) -> int:
        self._pass()
        stop = len(self.known.get(session, EMPTY)) + GRID
        self.known[session] = known.take(stop)
        return stop

    def checkpoint(self, session: str) -> str:
        marks = {*self.marks.get(session, ()), len(self.known[session])}
        self.marks[session] = tuple(sorted(marks))[-MAX_CHECKPOINTS:]
        return self.digest(session)

    def ask(
        self,
        session: str,
        *,
        tail: Ids,
        question: Ids,
        letters: Sequence[int],
        line: int | None = None,
    ) -> tuple[float, ...]:
        self.asked.set()
        self._pass()
        rest = 0.5 / (len(letters) - 1)
        return (0.5, *(rest for _ in letters[1:]))

    def vectors(
        self,
        session: str,
        *,
        tail: Ids,
        layers: Sequence[int],
        last: int,
        line: int | None = None,
    ) -> NDArray[np.float32]:
        self.asked.set()
        self._pass()
        return np.ones((len(layers), HIDDEN), np.float32)

    def write(
        self, session: str, *, tail: Ids, prompt: Ids, most: int, line: int | None = None
    ) -> Writing:
        raise OutOfRoomError("this engine does not write")

    def digest(self, session: str) -> str:
        self._pass()
        return f"{hash(self.known.get(session, EMPTY)):x}"

    def export(self, session: str, *, limit_bytes: int) -> bytes:
        self._pass()
        return b"state of " + session.encode()

    def drop(self, session: str, *, erased: bool = False) -> int:
        self.marks.pop(session, None)
        return 4 * len(self.known.pop(session, EMPTY))

    def give_way(self, sessions: Sequence[str], *, newest: bool = True) -> int:
        return 0

    def pin(self, session: str, written: Sequence[Span] = ()) -> Pinned | None:
        return None

    def begin_restore(
        self, session: str, manifest: Manifest, head: Mapping[str, RawTensor], known: Ids
    ) -> Restore:
        raise SnapshotError("this engine keeps no snapshots")

    def host_buffer(self, size: int) -> memoryview:
        return memoryview(bytearray(size))

    def synchronise(self) -> None:
        """There is nothing to wait for."""

    def state_stats(self, session: str) -> StateStats | None:
        known = self.known.get(session)
        if known is None:
            return None
        marks = self.marks.get(session, ())
        return StateStats(len(known), len(known) // GRID, 4 * len(known), marks)

    def stats(self) -> EngineStats:
        held = sum(4 * len(known) for known in self.known.values())
        return EngineStats(held, held, 1 << 30, 0, len(self.known))

    def close(self) -> None:
        self.known.clear()
        self.marks.clear()

    def _pass(self) -> None:
        assert self.gate.wait(30), "the test never opened the gate"

"""An engine that reads nothing and knows what it would have cost: positions, checkpoints, bytes.

What a chunk takes passes on the virtual clock after it was counted as read: a request that comes
meanwhile waits for it, so when its turn begins the chunk is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NoReturn, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from shadow_reader.errors import OutOfRoomError, SnapshotError, TooLargeError
from shadow_reader.events.ids import EMPTY, Ids
from shadow_reader.events.snapshots import Manifest, RawTensor, Span
from shadow_reader.events.view import MAX_CHECKPOINTS
from shadow_reader.replay.simulation.policy import Policy
from shadow_reader.shadow.engine import Aligned, EngineIdentity, EngineStats, StateStats
from shadow_reader.shadow.job_thread import JobThread

P = ParamSpec("P")
T = TypeVar("T")

ROW_BYTES: Final = 12_288
STATE_BYTES: Final = 19_500_000
"""Of the 0.8B in bfloat16."""

LAYERS: Final = 24
HIDDEN: Final = 1024
VOCABULARY: Final = 1 << 31
CONTEXT_IDS: Final = 1 << 31


@dataclass(slots=True)
class _State:
    read: Ids = EMPTY
    checkpoints: list[int] = field(default_factory=list)


class CostEngine:
    """The ``Engine`` of one policy.

    Attributes:
        owed_s: what was done since it was last set to zero, in seconds.
    """

    def __init__(self, policy: Policy) -> None:
        self.owed_s = 0.0
        self._chunk_s = policy.chunk_s
        self._restore_s = policy.restore_ms / 1000
        self._cap = int(policy.cap_gb * 1e9) or 1 << 62
        self._grid = policy.grid
        self._shared_line = policy.shared_ids // policy.grid * policy.grid
        self._passed = 0
        self._states: dict[str, _State] = {}
        self._on_disk: dict[str, _State] = {}
        self._bytes = self._peak = 0
        self._identity = EngineIdentity("cost", "0" * 16, self._grid, "none", "none", "cost", 1)

    @property
    def identity(self) -> EngineIdentity:
        """See ``Engine``: of no weights."""
        return self._identity

    @property
    def vocabulary(self) -> int:
        """Any id."""
        return VOCABULARY

    @property
    def context_ids(self) -> int:
        """Any length."""
        return CONTEXT_IDS

    def position(self, session: str) -> int:
        """Where the session's state stands; 0 where there is none."""
        state = self._states.get(session)
        return len(state.read) if state is not None else 0

    def stands_after(self, session: str, agree: int, shared: int) -> int:
        """Where it would stand after a prompt that has the first ``agree`` ids in common with what
        was known, and the first ``shared`` with all prompts."""
        state = self._states.get(session)
        if state is not None and len(state.read) <= agree:
            return len(state.read)
        marks = state.checkpoints if state is not None else []
        own = max((mark for mark in marks if mark <= agree), default=0)
        return max(own, self._shared_start(max(agree, shared)))

    @property
    def layers(self) -> int:
        """Of the 0.8B."""
        return LAYERS

    @property
    def hidden(self) -> int:
        """Of the 0.8B."""
        return HIDDEN

    def align(self, session: str, known: Ids) -> Aligned:
        """See ``Engine.align``."""
        state = self._states.get(session)
        if state is None:
            state = self._come_back(session)
        if state is None:
            return self._start(session, known, Aligned(0))
        cut = state.read.common_prefix(known)
        if cut == len(state.read):
            state.read = known.take(cut)
            return Aligned(cut)
        before = _size(state)
        state.checkpoints = [mark for mark in state.checkpoints if mark <= cut]
        to = state.checkpoints[-1] if state.checkpoints else 0
        state.read = known.take(to)
        if not to:
            del self._states[session]
        self._bytes += (_size(state) if to else 0) - before
        return self._start(session, known, Aligned(to, cut))

    def read_chunk(self, session: str, known: Ids) -> int:
        """See ``Engine.read_chunk``."""
        state = self._states.get(session)
        start = len(state.read) if state is not None else 0
        fresh = STATE_BYTES if state is None or start in state.checkpoints else 0
        self._take(self._grid * ROW_BYTES + fresh)
        if state is None:
            state = self._states[session] = _State()
        stop = start + self._grid
        state.read = known.take(stop)
        self._passed += stop == self._shared_line
        self.owed_s += self._chunk_s
        return stop

    def checkpoint(self, session: str) -> str:
        """See ``Engine.checkpoint``; all digests are the same."""
        state = self._states[session]
        position = len(state.read)
        if position not in state.checkpoints:
            marks = sorted([*state.checkpoints, position])
            if len(marks) > MAX_CHECKPOINTS:
                self._bytes -= STATE_BYTES
            state.checkpoints = marks[-MAX_CHECKPOINTS:]
        return "0" * 16

    def ask(
        self,
        session: str,  # noqa: ARG002  # the contract's names
        *,
        tail: Ids,  # noqa: ARG002
        question: Ids,  # noqa: ARG002
        letters: Sequence[int],
        line: int | None = None,  # noqa: ARG002
    ) -> tuple[float, ...]:
        """See ``Engine.ask``: as likely as not."""
        self.owed_s += self._chunk_s
        return (1 / len(letters),) * len(letters)

    def vectors(
        self,
        session: str,  # noqa: ARG002
        *,
        tail: Ids,  # noqa: ARG002
        layers: Sequence[int],
        last: int,  # noqa: ARG002
        line: int | None = None,  # noqa: ARG002
    ) -> NDArray[np.float32]:
        """See ``Engine.vectors``: nothing is to be seen."""
        self.owed_s += self._chunk_s
        return np.zeros((len(layers), self.hidden), np.float32)

    def write(
        self,
        session: str,  # noqa: ARG002
        *,
        tail: Ids,  # noqa: ARG002
        prompt: Ids,  # noqa: ARG002
        most: int,  # noqa: ARG002
        line: int | None = None,  # noqa: ARG002
    ) -> NoReturn:
        """See ``Engine.write``: there is nothing to be said."""
        raise OutOfRoomError("a cost model writes nothing")

    def digest(self, session: str) -> str:  # noqa: ARG002
        """See ``Engine.digest``."""
        return "0" * 16

    def export(self, session: str, *, limit_bytes: int) -> NoReturn:  # noqa: ARG002
        """See ``Engine.export``: there is nothing to be written."""
        raise TooLargeError("a cost model has no state to export", limit=limit_bytes)

    def drop(self, session: str, *, erased: bool = False) -> int:
        """See ``Engine.drop``; with a disk the state can come back."""
        state = self._states.pop(session, None)
        if erased:
            self._on_disk.pop(session, None)
        if state is None:
            return 0
        if self._restore_s and not erased:
            self._on_disk[session] = state
        self._bytes -= _size(state)
        return _size(state)

    def give_way(self, sessions: Sequence[str], *, newest: bool = True) -> int:
        """See ``Engine.give_way``."""
        for kept in (1, 0) if newest else (1,):
            for session in sessions:
                state = self._states.get(session)
                if state is None or len(state.checkpoints) <= kept:
                    continue
                gone = state.checkpoints.pop(0)
                if gone != len(state.read):
                    self._bytes -= STATE_BYTES
                    return STATE_BYTES
        return 0

    def pin(self, session: str, written: Sequence[Span] = ()) -> None:  # noqa: ARG002
        """See ``Engine.pin``: nothing is to be copied out."""
        return

    def begin_restore(
        self,
        session: str,
        manifest: Manifest,  # noqa: ARG002
        head: Mapping[str, RawTensor],  # noqa: ARG002
        known: Ids,  # noqa: ARG002
    ) -> NoReturn:
        """See ``Engine.begin_restore``: states come back in ``align``."""
        raise SnapshotError(f"a cost model restores nothing, not {session!r} either")

    def host_buffer(self, size: int) -> memoryview:
        """See ``Engine.host_buffer``."""
        return memoryview(bytearray(size))

    def synchronise(self) -> None:
        """See ``Engine.synchronise``: all is done."""

    def state_stats(self, session: str) -> StateStats | None:
        """See ``Engine.state_stats``."""
        state = self._states.get(session)
        if state is None:
            return None
        read = len(state.read)
        return StateStats(read, read // self._grid, _size(state), tuple(state.checkpoints))

    def stats(self) -> EngineStats:
        """See ``Engine.stats``."""
        return EngineStats(self._bytes, self._peak, self._cap, 0, len(self._states))

    def close(self) -> None:
        """Forget everything."""
        self._states.clear()

    def _shared_start(self, agree: int) -> int:
        """The line that all sessions share, once a second one has passed it: it leaves a state
        there."""
        return self._shared_line if self._shared_line <= agree and self._passed > 1 else 0

    def _start(self, session: str, known: Ids, aligned: Aligned) -> Aligned:
        line = self._shared_start(len(known))
        if line <= aligned.committed:
            return aligned
        state = self._states.get(session)
        grown = (line - aligned.committed) * ROW_BYTES + (STATE_BYTES if state is None else 0)
        if self._bytes + grown > self._cap:
            return aligned
        self._take(grown)
        if state is None:
            state = self._states[session] = _State()
        state.read = known.take(line)
        return Aligned(line, aligned.cut, line)

    def _come_back(self, session: str) -> _State | None:
        state = self._on_disk.get(session)
        if state is None:
            return None
        self._take(_size(state))
        self._states[session] = self._on_disk.pop(session)
        self.owed_s += self._restore_s
        return state

    def _take(self, size: int) -> None:
        if self._bytes + size > self._cap:
            raise OutOfRoomError(
                f"{size} bytes more pass the cap of {self._cap}", field="cap_gb", limit=self._cap
            )
        self._bytes += size
        self._peak = max(self._peak, self._bytes)


def _size(state: _State) -> int:
    """Rows, and the states it names; the newest checkpoint can be the state it stands on."""
    read = len(state.read)
    return read * ROW_BYTES + STATE_BYTES * (
        len(state.checkpoints) + (read not in state.checkpoints)
    )


class VirtualDevice(JobThread):
    """The device thread's place in virtual time: a job is done, then what it took passes."""

    def __init__(self, engine: CostEngine) -> None:
        self._engine = engine

    async def run(self, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``job`` and let its time pass."""
        self._engine.owed_s = 0.0
        result = job(*args, **kwargs)
        if self._engine.owed_s:
            await asyncio.sleep(self._engine.owed_s)
        return result

    async def close(self) -> None:
        """There is no thread."""

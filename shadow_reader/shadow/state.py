"""The state of one session on the grid.

Laws: the state is a function of the ids read. It advances by whole chunks, each read at its own
absolute position from the state before it, so any history that ends with the same ids ends with
the same bits. What it stands on is one immutable value, replaced in one assignment when a chunk
is fully read: whatever fails before that leaves everything as it was. Pages and state tensors are
never written once they are made, so a checkpoint is the very state it was taken of, and sessions
that began alike stand on the same pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from shadow_reader.events.ids import Ids
from shadow_reader.events.view import MAX_CHECKPOINTS
from shadow_reader.shadow.digest import state_digest
from shadow_reader.shadow.engine import Aligned, StateStats
from shadow_reader.shadow.memory import Memory, Trail, chunk_bytes
from shadow_reader.shadow.model.qwen35 import Qwen35, RecurrentState, Step, Watch
from shadow_reader.shadow.pool import Page
from shadow_reader.shadow.standing import Checkpoint, Standing, chained, digest_of
from shadow_reader.shadow.writing import WritingFork


class SessionState:
    """Pages, recurrent and convolution state, and checkpoints of one session.

    It takes its pages, the state it stands on unless that is at 0, and its checkpoints' states;
    what others hold too is counted once for all. One thread uses it; ``committed`` and ``stats``
    any thread may read.
    """

    def __init__(self, model: Qwen35, memory: Memory) -> None:
        self._model = model
        self._memory = memory
        self._grid = memory.grid
        self._row_bytes = model.config.row_bytes(model.dtype.itemsize)
        self._now = Standing()

    @property
    def standing(self) -> Standing:
        """What it stands on; to keep it, hold it in the memory."""
        return self._now

    @property
    def ids(self) -> Ids:
        """The ids read."""
        return self._now.ids

    @property
    def committed(self) -> int:
        """The grid line the state stands at."""
        return len(self._now.ids)

    @property
    def pages(self) -> tuple[Page, ...]:
        """The page table."""
        return self._now.pages

    @property
    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """The checkpoints, lowest position first."""
        return self._now.checkpoints

    def recurrent_state(self) -> RecurrentState:
        """The state at the committed grid line; zeros at 0. Not to be written."""
        held = self._now.state
        return self._model.empty_state() if held is None else held.state

    def align(self, known: Ids) -> Aligned:
        """Go back, if need be, to ids that ``known`` begins with.

        A cut below committed goes back to the newest checkpoint at or below it, or to 0; the
        checkpoints and pages above that line are let go. Never fails for want of memory.
        """
        now = self._now
        cut = now.ids.common_prefix(known)
        if cut == len(now.ids):
            self._now = replace(now, ids=known.take(cut))
            return Aligned(cut)
        kept = tuple(c for c in now.checkpoints if c.position <= cut)
        to = kept[-1].position if kept else 0
        state = kept[-1].held if kept else None
        self._stand_on(Standing(known.take(to), now.pages[: to // self._grid], state, kept))
        return Aligned(to, cut)

    def adopt(self, known: Ids, trail: Trail) -> int:
        """Stand on the deepest state of ``trail``, which was found along ``known``; its line.

        It lies at or above the committed line. The own checkpoints stay. Takes no memory.
        """
        assert trail.state is not None, "the trail has no state"
        line = trail.depth * self._grid
        assert self.committed <= line, f"line {line} lies below {self.committed}"
        pages = trail.pages[: trail.depth]
        self._stand_on(Standing(known.take(line), pages, trail.state, self._now.checkpoints))
        return line

    def install(self, standing: Standing) -> None:
        """Stand on a standing that the caller holds and hands over; this one stands at 0."""
        assert not self._now.pages, "a state is installed where none is"
        self._now = standing

    def read_chunk(self, known: Ids) -> int:
        """Read the chunk [committed, committed + grid) of ``known``; the new committed.

        The page that somebody holds for the same ids is taken instead of a new one.

        Raises:
            OutOfRoomError: no room for the page, the next state or the rows on their way.
        """
        now, memory = self._now, self._memory
        start, stop = len(now.ids), len(now.ids) + self._grid
        assert len(known) >= stop, f"{len(known)} known ids do not reach grid line {stop}"
        assert now.ids.common_prefix(known) == start, "known ids differ from what was read"
        chunk = chunk_bytes(known, start // self._grid, self._grid)
        below = now.pages[-1] if now.pages else None
        with ExitStack() as undo:
            held = memory.reserve_state("the next state")
            undo.callback(memory.let_go, (), [held])
            with memory.account.hold(self._rows_bytes(self._grid, now), "a chunk being read"):
                found = memory.find_page(chunk, below)
                page = memory.pool.share(found) if found else memory.pool.allocate()
                undo.callback(memory.let_go, [page], ())
                step = self._forward(now, known.array(start, stop))
                if page is not found:
                    page.write(step.rows)
                held.fill(step.state)
                self._synchronise()
            undo.pop_all()
        if page is not found:
            page = memory.commit_page(page, chunk, below)
        held = memory.commit_state(held, page)
        self._now = replace(now, ids=known.take(stop), pages=(*now.pages, page), state=held)
        if now.state is not None:
            memory.let_go((), [now.state])
        return stop

    def checkpoint(self) -> str:
        """Set the state aside at its grid line, the oldest of six goes; the state's digest.

        At a line that has a checkpoint, and at 0, there is nothing to do. It takes no memory
        before the session reads on.
        """
        now, digest = self._now, self.digest()
        kept = now.checkpoints
        if now.state is None or (kept and kept[-1].position == len(now.ids)):
            return digest
        gone = kept[: len(kept) + 1 - MAX_CHECKPOINTS] if len(kept) >= MAX_CHECKPOINTS else ()
        taken = Checkpoint(len(now.ids), now.state, digest)
        self._memory.hold((), [now.state])
        self._now = replace(now, checkpoints=(*kept[len(gone) :], taken))
        self._memory.let_go((), [checkpoint.held for checkpoint in gone])
        return digest

    def give_up(self, checkpoint: Checkpoint) -> int:
        """Let go of one checkpoint; the bytes freed."""
        kept = tuple(c for c in self._now.checkpoints if c is not checkpoint)
        assert len(kept) < len(self._now.checkpoints), "not a checkpoint of this session"
        self._now = replace(self._now, checkpoints=kept)
        return self._memory.let_go((), [checkpoint.held])

    @contextmanager
    def fork(
        self, ids: Ids, *, line: int | None = None, watch: Watch | None = None
    ) -> Iterator[Step]:
        """Read ``ids`` (at least one) above the rows of a line, into scratch that goes away.

        Args:
            line: 0, a checkpoint's, or where the state stands, as without it.
            watch: sees what each layer leaves; see ``Qwen35.forward``.

        Raises:
            OutOfRoomError: the fork's rows and state would pass the cap.
        """
        base = self._now if line is None else self._at(line)
        scratch = self._rows_bytes(len(ids), base) + self._memory.state_bytes
        with self._memory.account.hold(scratch, f"a fork of {len(ids)} ids"):
            yield self._forward(base, ids.array(), watch)

    def write(self, ids: Ids, *, most: int, line: int | None = None) -> WritingFork:
        """Write above ``ids`` (at least one) above the rows of a line; ``line`` as in ``fork``.

        Raises:
            OutOfRoomError: its rows and state would pass the cap.
        """
        base = self._now if line is None else self._at(line)
        return WritingFork(
            self._model, self._memory, base, ids=ids, most=most, row_bytes=self._row_bytes
        )

    def digest(self, *, recompute: bool = False) -> str:
        """The state digest at the committed grid line.

        Args:
            recompute: hash every bit again instead of trusting what is remembered.
        """
        now = self._now
        if now.state is not None and not recompute:
            return digest_of(now.pages, now.state, len(now.ids))
        link, state = chained(now.pages, recompute=recompute), self.recurrent_state()
        return state_digest(link, recurrent=state.recurrent, conv=state.conv, position=len(now.ids))

    def release(self) -> int:
        """Let go of everything and stand at 0; the bytes that nobody else holds."""
        return self._stand_on(Standing())

    def stats(self) -> StateStats:
        """Where it stands and what it takes (its pages, not their slabs). Safe on any thread."""
        now, memory = self._now, self._memory
        states = now.distinct_states * memory.state_bytes
        return StateStats(
            committed=len(now.ids),
            pages=len(now.pages),
            bytes=len(now.pages) * memory.pool.page_bytes + states,
            checkpoints=tuple(c.position for c in now.checkpoints),
        )

    def _at(self, line: int) -> Standing:
        """What it stood on at a line that it has the state of; nothing more is held for it."""
        now = self._now
        if line == len(now.ids):
            return now
        states = {0: None, **{c.position: c.held for c in now.checkpoints}}
        assert line in states, f"no state at line {line}"
        return Standing(now.ids.take(line), now.pages[: line // self._grid], states[line])

    def _stand_on(self, other: Standing) -> int:
        """Hold ``other`` and let go of what it stood on; the bytes that nobody holds any more."""
        self._memory.hold(other.pages, other.states)
        now, self._now = self._now, other
        return self._memory.let_go(now.pages, now.states)

    def _forward(self, now: Standing, ids: NDArray[np.uint32], watch: Watch | None = None) -> Step:
        """The model over ``ids`` above what ``now`` has read."""
        return self._model.forward(
            torch.from_numpy(ids.astype(np.int64)).to(self._model.device),
            position=len(now.ids),
            past=[page.rows for page in now.pages],
            state=self._model.empty_state() if now.state is None else now.state.state,
            watch=watch,
        )

    def _rows_bytes(self, count: int, base: Standing) -> int:
        """Bytes of ``count`` rows in scratch, with the zero state that stands in at 0."""
        zeros = self._memory.state_bytes if base.state is None else 0
        return count * self._row_bytes + zeros

    def _synchronise(self) -> None:
        if self._model.device.type == "cuda":
            torch.cuda.synchronize(self._model.device)

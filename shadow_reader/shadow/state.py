"""The state of one session on the grid.

Laws: the state is a function of the ids read. It advances by whole chunks, each read at its own
absolute position from the state before it, so any history that ends with the same ids ends with
the same bits. What it stands on is one immutable value, replaced in one assignment when a chunk
is fully read: whatever fails before that leaves everything as it was. A state tensor is never
written once it is made; a checkpoint therefore holds the very tensors the state stood on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from shadow_reader.events.ids import EMPTY, Ids
from shadow_reader.events.view import MAX_CHECKPOINTS
from shadow_reader.shadow.account import MemoryAccount
from shadow_reader.shadow.digest import CHAIN_START, chain, state_digest, tensor_hashes
from shadow_reader.shadow.engine import Aligned, StateStats
from shadow_reader.shadow.model import Qwen35, RecurrentState, Step
from shadow_reader.shadow.pool import Page, PagePool


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A state set aside at a grid line above 0; position 0 needs none."""

    position: int
    state: RecurrentState
    digest: str


@dataclass(frozen=True, slots=True)
class Standing:
    """What a session stands on. ``state`` is None at position 0, where it is all zeros.

    ``ids`` are the ids read, a whole number of chunks; ``pages`` hold their rows, one a chunk;
    ``checkpoints`` come by position, all at or below ``len(ids)``.
    """

    ids: Ids = EMPTY
    pages: tuple[Page, ...] = ()
    state: RecurrentState | None = None
    checkpoints: tuple[Checkpoint, ...] = ()


class SessionState:
    """Pages, recurrent and convolution state, and checkpoints of one session.

    In the account it takes: its pages' slabs (the pool counts them), one state unless it stands
    at 0, one more a checkpoint. One thread uses it; ``committed`` and ``stats`` any thread may
    read.
    """

    def __init__(self, model: Qwen35, pool: PagePool, account: MemoryAccount) -> None:
        self._model = model
        self._pool = pool
        self._account = account
        self._grid = pool.shape[3]
        self._row_bytes = model.config.row_bytes(model.dtype.itemsize)
        self._state_bytes = model.config.state_bytes(model.dtype.itemsize)
        self._now = Standing()
        self._chain: list[bytes] = [CHAIN_START]

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
        state = self._now.state
        return self._model.empty_state() if state is None else state

    def align(self, known: Ids) -> Aligned:
        """Go back, if need be, to ids that ``known`` begins with.

        A cut below committed goes back to the newest checkpoint at or below it, or to 0; the
        checkpoints and pages above that line are let go. Never fails for want of memory.
        """
        now = self._now
        cut = now.ids.common_prefix(known)
        if cut < len(now.ids):
            return Aligned(self._rewind(known, cut), cut)
        self._now = replace(now, ids=known.take(cut))
        return Aligned(cut)

    def read_chunk(self, known: Ids) -> int:
        """Read the chunk [committed, committed + grid) of ``known``; the new committed.

        Raises:
            OutOfRoomError: no room for the page, the next state or the rows on their way.
        """
        now = self._now
        start, stop = len(now.ids), len(now.ids) + self._grid
        assert len(known) >= stop, f"{len(known)} known ids do not reach grid line {stop}"
        assert now.ids.common_prefix(known) == start, "known ids differ from what was read"
        with ExitStack() as undo:
            self._account.take(self._state_bytes, "the next state")
            undo.callback(self._account.give, self._state_bytes)
            with self._account.hold(self._rows_bytes(self._grid), "a chunk being read"):
                page = self._pool.allocate()
                undo.callback(self._pool.free, page)
                step = self._forward(now, known.array(start, stop))
                page.write(step.rows)
                self._synchronise()
            undo.pop_all()
        page.commit()
        ids, pages = known.take(stop), (*now.pages, page)
        self._now = replace(now, ids=ids, pages=pages, state=step.state)
        if now.state is not None:
            self._account.give(self._state_bytes)
        return stop

    def checkpoint(self) -> str:
        """Set the state aside at its grid line, the oldest of six goes; the state's digest.

        At a line that has a checkpoint, and at 0, there is nothing to do.

        Raises:
            OutOfRoomError: no checkpoint was taken, and none let go.
        """
        now = self._now
        kept = now.checkpoints
        if now.state is None or (kept and kept[-1].position == len(now.ids)):
            return self.digest()
        full = len(kept) == MAX_CHECKPOINTS
        if not full:
            self._account.take(self._state_bytes, "a checkpoint")
        try:
            taken = Checkpoint(len(now.ids), now.state, self.digest())
        except BaseException:
            if not full:
                self._account.give(self._state_bytes)
            raise
        self._now = replace(now, checkpoints=(*(kept[1:] if full else kept), taken))
        return taken.digest

    @contextmanager
    def fork(self, ids: Ids) -> Iterator[Step]:
        """Read ``ids`` (at least one) above the committed rows, into scratch that goes away.

        Raises:
            OutOfRoomError: the fork's rows and state would pass the cap.
        """
        now = self._now
        scratch = self._rows_bytes(len(ids)) + self._state_bytes
        with self._account.hold(scratch, f"a fork of {len(ids)} ids"):
            yield self._forward(now, ids.array())

    def digest(self, *, recompute: bool = False) -> str:
        """The state digest at the committed grid line.

        Args:
            recompute: hash every page again instead of trusting what is remembered of it.
        """
        now = self._now
        known = 1 if recompute else len(self._chain)
        pages = now.pages[known - 1 :]
        new = [page for page in pages if recompute or page.fingerprint is None]
        hashes = tensor_hashes([page.rows for page in new])
        for page, fingerprint in zip(new, hashes, strict=True):
            page.fingerprint = fingerprint
        links = self._chain[:known]
        for index, page in enumerate(pages, start=known - 1):
            assert page.fingerprint is not None
            ids = now.ids.array(index * self._grid, (index + 1) * self._grid)
            links.append(chain(links[-1], page.fingerprint, ids.astype("<u4").tobytes()))
        self._chain = links
        state = self.recurrent_state()
        return state_digest(
            links[-1], recurrent=state.recurrent, conv=state.conv, position=len(now.ids)
        )

    def release(self) -> int:
        """Let go of everything and stand at 0; the bytes this session took."""
        now, freed = self._now, self.stats().bytes
        self._go(Standing(), now)
        return freed

    def stats(self) -> StateStats:
        """Where it stands and what it takes (its pages, not their slabs). Safe on any thread."""
        now = self._now
        return StateStats(
            committed=len(now.ids),
            pages=len(now.pages),
            bytes=len(now.pages) * self._pool.page_bytes + _states(now) * self._state_bytes,
            checkpoints=tuple(c.position for c in now.checkpoints),
        )

    def _rewind(self, known: Ids, cut: int) -> int:
        now = self._now
        kept = tuple(c for c in now.checkpoints if c.position <= cut)
        to = kept[-1].position if kept else 0
        state = kept[-1].state if kept else None
        self._go(Standing(known.take(to), now.pages[: to // self._grid], state, kept), now)
        return to

    def _go(self, back: Standing, now: Standing) -> None:
        """Stand on ``back``, a beginning of ``now``; free what lies above."""
        self._now = back
        del self._chain[len(back.pages) + 1 :]
        for page in now.pages[len(back.pages) :]:
            self._pool.free(page)
        self._account.give((_states(now) - _states(back)) * self._state_bytes)

    def _forward(self, now: Standing, ids: NDArray[np.uint32]) -> Step:
        """The model over ``ids`` above what ``now`` has read."""
        return self._model.forward(
            torch.from_numpy(ids.astype(np.int64)).to(self._model.device),
            position=len(now.ids),
            past=[page.rows for page in now.pages],
            state=self._model.empty_state() if now.state is None else now.state,
        )

    def _rows_bytes(self, count: int) -> int:
        """Bytes of ``count`` rows in scratch, with the zero state that stands in at 0."""
        zeros = self._state_bytes if self._now.state is None else 0
        return count * self._row_bytes + zeros

    def _synchronise(self) -> None:
        if self._model.device.type == "cuda":
            torch.cuda.synchronize(self._model.device)


def _states(standing: Standing) -> int:
    """States the account counts: the one it stands on, and the checkpoints."""
    return (standing.state is not None) + len(standing.checkpoints)

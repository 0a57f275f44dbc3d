"""What states are made of: pages and state tensors, each counted once, found by the ids behind it.

Laws: a committed page and a filled state never change again, so any number of holders share one;
it is let go of when the last of them lets go. The same ids give the same bits (on one grid, by one
build), so there is at most one page, and one state, for the same beginning of ids: whoever makes
another takes the one that is there. A beginning is named by a hash chained over its chunks, but
the name alone is not believed: a page is the right one when its own ids are, and it lies on the
right page; a state is the right one when it stands on the right page.

One thread uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import torch

from shadow_reader.errors import OutOfRoomError
from shadow_reader.events.ids import Ids
from shadow_reader.shadow.account import MemoryAccount
from shadow_reader.shadow.digest import tensor_hashes
from shadow_reader.shadow.model.qwen35 import RecurrentState
from shadow_reader.shadow.pool import Page, PagePool

PREFIX_BYTES: Final = 16
NO_IDS: Final = bytes(PREFIX_BYTES)
"""The name of the empty beginning."""


def prefix_after(previous: bytes, chunk: bytes) -> bytes:
    """The name of the ids that ``previous`` names and one more chunk (little-endian uint32)."""
    return blake2b(previous + chunk, digest_size=PREFIX_BYTES).digest()


def chunk_bytes(ids: Ids, index: int, grid: int) -> bytes:
    """Chunk number ``index`` of ``ids``, little-endian uint32."""
    return ids.array(index * grid, (index + 1) * grid).astype("<u4", copy=False).tobytes()


class HeldState:
    """One recurrent and convolution state above position 0, shared by whoever stands on it.

    Attributes:
        holders: how many hold it; whoever reserved it is the first.
        top: the page at whose end it stands; set when it is committed.
    """

    __slots__ = ("_hashes", "_state", "holders", "top")

    def __init__(self) -> None:
        self._state: RecurrentState | None = None
        self._hashes: tuple[bytes, bytes] | None = None
        self.holders = 1
        self.top: Page | None = None

    @property
    def state(self) -> RecurrentState:
        """The tensors; not to be written."""
        assert self._state is not None, "the state is not filled, or was let go of"
        return self._state

    def fill(self, state: RecurrentState) -> None:
        """Give it its tensors, once."""
        assert self._state is None, "a state is filled once"
        assert self.holders, "the state was let go of"
        self._state = state

    def hashes(self) -> tuple[bytes, bytes]:
        """``tensor_hash`` of the recurrent and of the convolution state, remembered."""
        if self._hashes is None:
            recurrent, conv = tensor_hashes([self.state.recurrent, self.state.conv])
            self._hashes = recurrent, conv
        return self._hashes

    def empty(self) -> None:
        """For the memory: drop the tensors; this handle is dead afterwards."""
        self._state = None


@dataclass(frozen=True, slots=True)
class Trail:
    """What is held along some ids, whoever holds it.

    Attributes:
        pages: of the leading chunks, as far as each has one.
        depth: chunks below the deepest state among them. state: that state; None at depth 0.
    """

    pages: tuple[Page, ...] = ()
    depth: int = 0
    state: HeldState | None = None


class Memory:
    """Hands out pages and states, shares them, and finds them again.

    Args:
        pool: makes the pages. account: asked before a state is made; the pool asks it too.
        state_bytes: of one recurrent and convolution state.
    """

    def __init__(self, pool: PagePool, account: MemoryAccount, state_bytes: int) -> None:
        self.pool = pool
        self.account = account
        self.state_bytes = state_bytes
        self.grid = pool.shape[3]
        self._pages: dict[bytes, Page] = {}
        self._states: dict[bytes, HeldState] = {}

    @contextmanager
    def room(self, what: str) -> Iterator[None]:
        """The device's own refusal, which can come below the cap, said in our words."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            left, limit = self.account.left_bytes, self.account.cap_bytes
            raise OutOfRoomError(
                f"{what} finds no memory left on the device, although {left} bytes are left "
                f"of the cap of {limit} bytes (cap_gb)",
                field="cap_gb",
                what=what,
                left=left,
                limit=limit,
            ) from error

    # -- making -------------------------------------------------------------------------------

    def reserve_state(self, what: str) -> HeldState:
        """Count one more state; its tensors may be made now, and are given to it by ``fill``.

        Raises:
            OutOfRoomError: the cap has no room for it.
        """
        self.account.take(self.state_bytes, what)
        return HeldState()

    def commit_page(self, page: Page, chunk: bytes, below: Page | None) -> Page:
        """Seal a written page; the one to hold, which is another if these ids had one."""
        prefix = prefix_after(below.prefix if below else NO_IDS, chunk)
        page.commit(chunk, below, prefix)
        found = self.find_page(chunk, below)
        if found is None:
            self._pages.setdefault(prefix, page)
            return page
        self.pool.share(found)
        self.let_go([page], ())
        return found

    def commit_state(self, held: HeldState, top: Page) -> HeldState:
        """Make a filled state findable; the one to hold, which is another if there was one."""
        held.top = top
        found = self._states.setdefault(top.prefix, held)
        if found is held or found.top is not top:
            return held
        found.holders += 1
        self.let_go((), [held])
        return found

    # -- sharing ------------------------------------------------------------------------------

    def find_page(self, chunk: bytes, below: Page | None) -> Page | None:
        """The page of this chunk above that page, if anybody holds one."""
        page = self._pages.get(prefix_after(below.prefix if below else NO_IDS, chunk))
        right = page is not None and page.ids == chunk and page.below is below
        return page if right else None

    def trail(self, ids: Ids) -> Trail:
        """The pages held along ``ids``, and the deepest state among them. Costs what is shared."""
        pages, depth = list[Page](), 0
        deepest: HeldState | None = None
        for index in range(len(ids) // self.grid):
            chunk = chunk_bytes(ids, index, self.grid)
            page = self.find_page(chunk, pages[-1] if pages else None)
            if page is None:
                break
            pages.append(page)
            state = self._states.get(page.prefix)
            if state is not None and state.top is page:
                depth, deepest = len(pages), state
        return Trail(tuple(pages), depth, deepest)

    def hold(self, pages: Sequence[Page], states: Iterable[HeldState]) -> None:
        """One more holder of each; takes no memory and cannot fail."""
        for page in pages:
            self.pool.share(page)
        for held in states:
            assert held.holders, "the state was let go of"
            held.holders += 1

    def let_go(self, pages: Sequence[Page], states: Iterable[HeldState]) -> int:
        """One holder less of each; the bytes of those that nobody holds any more."""
        freed = 0
        for page in pages:
            if self.pool.let_go(page):
                freed += self.pool.page_bytes
                if self._pages.get(page.prefix) is page:
                    del self._pages[page.prefix]
        for held in states:
            held.holders -= 1
            assert held.holders >= 0, "let go of more often than held"
            if not held.holders:
                held.empty()
                if held.top is not None and self._states.get(held.top.prefix) is held:
                    del self._states[held.top.prefix]
                self.account.give(self.state_bytes)
                freed += self.state_bytes
        return freed

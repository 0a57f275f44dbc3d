"""Pages of KV rows, cut from slabs.

Laws: a slab never moves, so the address of a page is good for as long as the page is held. A
committed page is never written again, so any number of holders may share it; it is freed when the
last of them lets go. Free pages are reused lowest address first, which empties the high slabs; an
empty slab is given back. With ``poison`` every page that holds nothing is NaN, so that whoever
reads one is found out.
"""

from __future__ import annotations

import math
from bisect import insort
from dataclasses import dataclass
from typing import Final

import torch

from shadow_reader.shadow.account import MemoryAccount

SLAB_PAGES: Final = 16
"""Pages a slab; fewer where the cap is small (``slab_pages``)."""

SLABS_A_CAP: Final = 8
"""A slab takes at most this fraction of the cap, if a single page does."""

Address = tuple[int, int]
"""Slab number, page within the slab."""


def slab_pages(page_bytes: int, cap_bytes: int) -> int:
    """Pages a slab has: 16, or as many as fit an eighth of the cap, at least one."""
    return max(1, min(SLAB_PAGES, cap_bytes // SLABS_A_CAP // page_bytes))


@dataclass(slots=True)
class _Slab:
    """One allocation; ``held`` counts its pages in use."""

    tensor: torch.Tensor
    held: int = 0


class Page:
    """One chunk's KV rows of all full-attention layers. Made by a pool, written once.

    Attributes:
        address: where it lies.
        holders: how many hold it; whoever took it from the pool is the first.
        ids: the chunk it was read from, little-endian uint32. below: the page of the chunk before;
            None for the first. prefix: a name for all ids up to its end. Set when it is committed.
        fingerprint: remembered hash of a committed page's bytes. link: the digest chain's value
            after it. Both are None until someone asks.
    """

    __slots__ = (
        *("_committed", "_rows", "address", "holders"),
        *("below", "ids", "prefix", "fingerprint", "link"),
    )

    def __init__(self, rows: torch.Tensor, address: Address) -> None:
        self._rows: torch.Tensor | None = rows
        self._committed = False
        self.address = address
        self.holders = 1
        self.ids = b""
        self.below: Page | None = None
        self.prefix = b""
        self.fingerprint: bytes | None = None
        self.link: bytes | None = None

    @property
    def rows(self) -> torch.Tensor:
        """The committed rows, [full_layers, 2, kv_heads, grid, head_dim]; not to be written."""
        assert self._committed, f"page {self.address} is not committed"
        return self._held()

    @property
    def draft(self) -> torch.Tensor:
        """The rows as long as they may be written: before the page is committed."""
        assert not self._committed, f"page {self.address} is committed: never written again"
        return self._held()

    def write(self, rows: torch.Tensor) -> None:
        """Copy ``rows`` in; the same shape and dtype as the page."""
        draft = self.draft
        assert rows.shape == draft.shape, f"a page is {draft.shape}, not {rows.shape}"
        assert rows.dtype == draft.dtype, f"a page is {draft.dtype}, not {rows.dtype}"
        draft.copy_(rows)

    def commit(self, ids: bytes = b"", below: Page | None = None, prefix: bytes = b"") -> None:
        """Seal the page: from here on it is only read, and stands for these ids above ``below``."""
        self._held()
        self._committed = True
        self.ids, self.below, self.prefix = ids, below, prefix

    def take_back(self) -> torch.Tensor:
        """For the pool: the memory; this handle is dead afterwards."""
        rows = self._held()
        self._rows = None
        return rows

    def _held(self) -> torch.Tensor:
        assert self._rows is not None, f"page {self.address} was freed"
        return self._rows


class PagePool:
    """Hands out pages of one shape, and counts their slabs in the account.

    Args:
        shape: of a page: (full_layers, 2, kv_heads, grid, head_dim).
        dtype, device: of a page.
        account: asked before a slab is allocated.
        poison: fill pages with NaN when they are born and when they are freed.
    """

    def __init__(
        self,
        *,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        account: MemoryAccount,
        poison: bool = False,
    ) -> None:
        self.shape = shape
        self.page_bytes = math.prod(shape) * dtype.itemsize
        self.slab_pages = slab_pages(self.page_bytes, account.cap_bytes)
        self._dtype = dtype
        self._device = device
        self._account = account
        self._poison = poison
        self._slabs: dict[int, _Slab] = {}
        self._free: list[Address] = []

    @property
    def slab_bytes(self) -> int:
        """What the next slab will take."""
        return self.slab_pages * self.page_bytes

    @property
    def slabs(self) -> int:
        """Slabs allocated now."""
        return len(self._slabs)

    @property
    def pages(self) -> int:
        """Pages in use now."""
        return self.slabs * self.slab_pages - len(self._free)

    def allocate(self) -> Page:
        """The free page with the lowest address; a new slab where there is none.

        Raises:
            OutOfRoomError: a slab is needed and the cap has no room for it; nothing changed.
        """
        if not self._free:
            self._add_slab()
        address = self._free.pop(0)
        slab = self._slabs[address[0]]
        slab.held += 1
        return Page(slab.tensor[address[1]], address)

    def share(self, page: Page) -> Page:
        """One more holder of a page; it takes no memory."""
        assert page.holders, f"page {page.address} was freed"
        page.holders += 1
        return page

    def let_go(self, page: Page) -> bool:
        """One holder less. The last one frees the page, and its slab when that is empty then.

        Returns:
            Whether the page was freed.
        """
        assert page.holders, f"page {page.address} was freed"
        page.holders -= 1
        if page.holders:
            return False
        rows = page.take_back()
        number, _ = page.address
        if self._poison:
            rows.fill_(math.nan)
        insort(self._free, page.address)
        slab = self._slabs[number]
        slab.held -= 1
        if not slab.held:
            self._give_back(number)
        return True

    def _add_slab(self) -> None:
        self._account.take(self.slab_bytes, f"a slab of {self.slab_pages} pages")
        try:
            shape = self.slab_pages, *self.shape
            tensor = torch.empty(shape, dtype=self._dtype, device=self._device)
            if self._poison:
                tensor.fill_(math.nan)
        except BaseException:
            self._account.give(self.slab_bytes)
            raise
        number = next(n for n in range(len(self._slabs) + 1) if n not in self._slabs)
        self._slabs[number] = _Slab(tensor)
        for index in range(self.slab_pages):
            insort(self._free, (number, index))

    def _give_back(self, number: int) -> None:
        del self._slabs[number]
        self._free = [address for address in self._free if address[0] != number]
        self._account.give(self.slab_bytes)

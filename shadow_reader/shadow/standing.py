"""What a session stands on: one immutable value, and its digest.

Law: a standing is a function of its ids. It never changes; a session moves by standing on another
one. Who keeps a standing holds its pages and states in the memory, once for each that it names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shadow_reader.events.ids import EMPTY, Ids
from shadow_reader.shadow.digest import CHAIN_START, chain, joined_digest, tensor_hashes
from shadow_reader.shadow.memory import NO_IDS, HeldState
from shadow_reader.shadow.pool import Page


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A state set aside at a grid line above 0; position 0 needs none."""

    position: int
    held: HeldState
    digest: str


@dataclass(frozen=True, slots=True)
class Standing:
    """See the module. ``state`` is None at position 0, where it is all zeros.

    ``ids`` are the ids read, a whole number of chunks; ``pages`` hold their rows, one a chunk;
    ``checkpoints`` come by position, all at or below ``len(ids)``.
    """

    ids: Ids = EMPTY
    pages: tuple[Page, ...] = ()
    state: HeldState | None = None
    checkpoints: tuple[Checkpoint, ...] = ()

    @property
    def prefix(self) -> bytes:
        """Names the ids."""
        return self.pages[-1].prefix if self.pages else NO_IDS

    @property
    def states(self) -> Iterator[HeldState]:
        """Every state it names, as often as it names it."""
        if self.state is not None:
            yield self.state
        for checkpoint in self.checkpoints:
            yield checkpoint.held

    @property
    def distinct_states(self) -> int:
        """How many states it takes: the newest checkpoint can be the state it stands on."""
        newest = self.checkpoints[-1].held if self.checkpoints else None
        return len(self.checkpoints) + (self.state is not None and self.state is not newest)


def chained(pages: Sequence[Page], *, recompute: bool = False) -> bytes:
    """The digest chain's value after ``pages``, which begin at position 0.

    What is not remembered yet is hashed now, and remembered.

    Args:
        recompute: hash every page, and neither trust nor change what is remembered.
    """
    known = 0 if recompute else _linked(pages)
    new = pages[known:]
    link = pages[known - 1].link if known else CHAIN_START
    assert link is not None
    unknown = [page for page in new if recompute or page.fingerprint is None]
    hashes = dict(zip(unknown, tensor_hashes([page.rows for page in unknown]), strict=True))
    for page in new:
        fingerprint = hashes.get(page) or page.fingerprint
        assert fingerprint is not None
        link = chain(link, fingerprint, page.ids)
        if not recompute:
            page.fingerprint, page.link = fingerprint, link
    return link


def digest_of(pages: Sequence[Page], held: HeldState, position: int) -> str:
    """The digest of the state at ``position``, a line above 0, over exactly these pages."""
    recurrent, conv = held.hashes()
    return joined_digest(chained(pages), recurrent=recurrent, conv=conv, position=position)


def _linked(pages: Sequence[Page]) -> int:
    """How many leading pages know the chain; whoever links a page has linked those below it."""
    count = len(pages)
    while count and pages[count - 1].link is None:
        count -= 1
    return count

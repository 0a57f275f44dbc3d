"""A spilled state on its way back into memory.

Laws: nothing is believed that was not checked: the facts and the ids before anything is
allocated, every tensor by its digest where it now lies, and at the end the state digests, which
chain all pages and ids. The session stands on the state in one assignment, or nothing of it stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from shadow_reader.errors import OutOfRoomError
from shadow_reader.events.ids import Ids
from shadow_reader.events.snapshots import Manifest, Piece, RawTensor
from shadow_reader.shadow.digest import chain, joined_digest, tensor_hashes
from shadow_reader.shadow.memory import HeldState, Memory, chunk_bytes
from shadow_reader.shadow.model.qwen35 import RecurrentState
from shadow_reader.shadow.pool import Page
from shadow_reader.shadow.raw import from_host, is_like
from shadow_reader.shadow.snapshot_rules import (
    check_names,
    lines_of,
    needed_pieces,
    page_name,
    refusal,
    state_names,
)
from shadow_reader.shadow.standing import Checkpoint, Standing, chained

Blank = Callable[[], RecurrentState]
"""Makes a state's tensors, whatever is in them."""


class RestoringState:
    """The ``Restore`` of one snapshot; see ``engine.Restore``. Begins with its states.

    Args:
        manifest, ids: checked already.
        head: the head's tensors. line: the grid line at which the state will stand.
        blank: makes a state's tensors.
        install: takes over the standing, and what it holds.

    Raises:
        SnapshotError: a tensor of the head is missing, or is not what its digest says.
        OutOfRoomError: no room for the states.
    """

    def __init__(
        self,
        memory: Memory,
        manifest: Manifest,
        head: Mapping[str, RawTensor],
        *,
        ids: Ids,
        line: int,
        blank: Blank,
        install: Callable[[Standing], None],
    ) -> None:
        self._memory = memory
        self._manifest = manifest
        self._ids = ids.take(line)
        self._install = install
        self._done = False
        self._states: dict[int, HeldState] = {}
        self._read: dict[int, tuple[Page, bytes]] = {}
        self._shared = memory.trail(self._ids).pages
        memory.hold(self._shared, ())
        self._pieces = needed_pieces(manifest, memory.grid, line, len(self._shared))
        try:
            check_names(manifest, "the head", head, manifest.head_digests)
            for position in lines_of(manifest):
                if position <= line:
                    self._take_state(position, head, blank)
        except BaseException:
            self.abort()
            raise

    @property
    def position(self) -> int:
        """The grid line at which the state will stand."""
        return len(self._ids)

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """What is still to be put."""
        return self._pieces

    @torch.inference_mode()
    def put(self, piece: Piece, tensors: Mapping[str, RawTensor]) -> None:
        """Upload the piece's pages below the line that nobody holds, and check them there.

        Raises:
            SnapshotError, OutOfRoomError: see ``engine.Restore``.
        """
        assert piece in self._pieces, f"piece {piece.name} is not to be put (any more)"
        pages = list[Page]()
        try:
            check_names(self._manifest, f"piece {piece.name}", tensors, piece.digests)
            first = max(piece.start, len(self._shared))
            names = [page_name(i) for i in range(first, min(piece.stop, self._pages))]
            with self._memory.room("a restored piece"):
                pages.extend(self._memory.pool.allocate() for _ in names)
                hashes = self._upload(piece, pages, [(n, tensors[n]) for n in names])
        except BaseException as error:
            self._memory.let_go(pages, ())
            if not isinstance(error, OutOfRoomError):
                self.abort()
            raise
        self._read |= {first + i: found for i, found in enumerate(zip(pages, hashes, strict=True))}
        self._pieces = tuple(other for other in self._pieces if other is not piece)

    @torch.inference_mode()
    def finish(self) -> int:
        """Check the digests, then let the session stand on the state; its line.

        Raises:
            SnapshotError: see ``engine.Restore``.
        """
        assert not self._done, "the restore is over"
        assert not self._pieces, f"{len(self._pieces)} pieces were not put"
        try:
            with self._memory.room("a digest"):
                digests = self._check_digests()
        except BaseException:
            self.abort()
            raise
        self._done = True
        self._install(self._standing(digests))
        return self.position

    @torch.inference_mode()
    def abort(self) -> None:
        """Let go of everything. May be called again, and does nothing after ``finish``."""
        if not self._done:
            self._done = True
            self._pieces = ()
            pages = [*self._shared, *(page for page, _ in self._read.values())]
            self._memory.let_go(pages, self._states.values())

    @property
    def _pages(self) -> int:
        return len(self._ids) // self._memory.grid

    def _take_state(self, line: int, head: Mapping[str, RawTensor], blank: Blank) -> None:
        held = self._memory.reserve_state("a restored state")
        self._states[line] = held
        state = blank()
        names = state_names(line)
        raws = [head[name] for name in names]
        for name, raw, tensor in zip(names, raws, (state.recurrent, state.conv), strict=True):
            self._must_be_like(name, raw, tensor)
        from_host([(raws[0], state.recurrent), (raws[1], state.conv)])
        held.fill(state)
        for name, found in zip(names, held.hashes(), strict=True):
            self._must_hash(name, found, self._manifest.head_digests[name])

    def _upload(
        self, piece: Piece, pages: list[Page], raws: list[tuple[str, RawTensor]]
    ) -> list[bytes]:
        """Fill the pages; the hashes of what lies in them then."""
        for page, (name, raw) in zip(pages, raws, strict=True):
            self._must_be_like(name, raw, page.draft)
        from_host((raw, page.draft) for page, (_, raw) in zip(pages, raws, strict=True))
        hashes = tensor_hashes([page.draft for page in pages])
        for (name, _), found in zip(raws, hashes, strict=True):
            self._must_hash(name, found, piece.digests[name])
        return hashes

    def _check_digests(self) -> dict[int, str]:
        """The state digest of every line, computed from what lies in memory."""
        expected = dict(self._manifest.checkpoints) | {
            self._manifest.position: self._manifest.digest
        }
        grid, found = self._memory.grid, dict[int, str]()
        link = chained(self._shared)
        for index in range(self._pages):
            if index < len(self._shared):
                link = self._shared[index].link or link
            else:
                link = chain(link, self._read[index][1], chunk_bytes(self._ids, index, grid))
            line = (index + 1) * grid
            held = self._states.get(line)
            if held is not None:
                recurrent, conv = held.hashes()
                found[line] = joined_digest(link, recurrent=recurrent, conv=conv, position=line)
                if found[line] != expected[line]:
                    what = f"state digest at {line}"
                    raise refusal(self._manifest, what, found[line], expected[line])
        return found

    def _standing(self, digests: dict[int, str]) -> Standing:
        """Commit everything; holds are handed over as they are, but each state's are counted."""
        memory, pages = self._memory, list(self._shared)
        for index in range(len(pages), self._pages):
            page, fingerprint = self._read[index]
            page.fingerprint = fingerprint
            below = pages[-1] if pages else None
            chunk = chunk_bytes(self._ids, index, memory.grid)
            pages.append(memory.commit_page(page, chunk, below))
        states = {
            line: memory.commit_state(held, pages[line // memory.grid - 1])
            for line, held in self._states.items()
        }
        marks = [line for line, _ in self._manifest.checkpoints if line <= self.position]
        checkpoints = tuple(Checkpoint(line, states[line], digests[line]) for line in marks)
        if self.position in marks:
            memory.hold((), [states[self.position]])
        return Standing(self._ids, tuple(pages), states[self.position], checkpoints)

    def _must_be_like(self, name: str, raw: RawTensor, tensor: torch.Tensor) -> None:
        if not is_like(raw, tensor):
            found = f"{raw.dtype} {tuple(raw.shape)} of {memoryview(raw.data).nbytes} bytes"
            expected = f"{tensor.dtype} {tuple(tensor.shape)} of {tensor.nbytes} bytes"
            raise refusal(self._manifest, f"tensor {name}", found, expected)

    def _must_hash(self, name: str, found: bytes, expected: str) -> None:
        if found.hex() != expected:
            raise refusal(self._manifest, f"digest of {name}", found.hex(), expected)

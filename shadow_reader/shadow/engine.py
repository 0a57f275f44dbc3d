"""What the reader loop drives: an engine that holds the states of many sessions.

Every method but the properties runs on the one device thread; no two run at once. The engine knows
nothing of the journal, of turns or of time: it is told ids and says what it did. ``TorchEngine``
(``torch_engine.py``) is the real one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shadow_reader.events.ids import Ids
from shadow_reader.events.snapshots import Manifest, Piece, RawTensor, Span


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """What decides the bits of a state. Equal identities give equal states for equal ids.

    Attributes:
        model: the model as it was named. weights: hash of all tensors.
        grid: ids a chunk. dtype: of KV rows and convolution state. device: kind and name.
        build: versions and thread count that choose the arithmetic.
        layout: version of pages and snapshots.
    """

    model: str
    weights: str
    grid: int
    dtype: str
    device: str
    build: str
    layout: int

    @property
    def engine(self) -> str:
        """A short name of the combination, the model's name left out."""
        facts = (self.weights, self.grid, self.dtype, self.device, self.build, self.layout)
        return blake2b(repr(facts).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class Aligned:
    """What ``align`` found and did.

    Attributes:
        committed: the grid line the state stands at now.
        cut: first position where the ids differ from what was read; None: no rewind was needed.
        shared: the line up to which the state was taken over from what others have read, which
            is ``committed`` then, and can lie above the cut; 0: nothing was taken over.
    """

    committed: int
    cut: int | None = None
    shared: int = 0

    @property
    def reread(self) -> int:
        """Ids below the cut that must be read again."""
        return 0 if self.cut is None else max(0, self.cut - self.committed)


@dataclass(frozen=True, slots=True)
class StateStats:
    """One resident state: where it stands, what it takes, where its checkpoints are.

    ``bytes`` counts what it shares with others in full.
    """

    committed: int
    pages: int
    bytes: int
    checkpoints: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EngineStats:
    """All that is held: bytes in pages (whole slabs), states and checkpoints, and the cap.

    What is shared is counted once. ``prefix_points``: states kept where sessions parted.
    """

    bytes: int
    peak_bytes: int
    cap_bytes: int
    weights_bytes: int
    sessions: int
    prefix_points: int = 0


class Pinned(Protocol):
    """A state as it was committed when it was pinned, whatever becomes of its session since.

    What it holds stays in the account until ``release``. Pieces are asked for in order: each call
    hashes or copies one piece at most, so that the device is let go of in between.
    """

    @property
    def position(self) -> int:
        """The grid line of the state."""
        ...

    @property
    def pieces(self) -> int:
        """How many pieces its pages make."""
        ...

    def piece(self, index: int) -> Piece:
        """What piece ``index`` is: the same name as long as ids and bytes are the same."""
        ...

    def copy_piece(self, index: int) -> Mapping[str, RawTensor]:
        """Its tensors, copied to the host."""
        ...

    def copy_head(self) -> Mapping[str, RawTensor]:
        """The ids, the state and the checkpoints' states, copied to the host."""
        ...

    def manifest(self, *, session: str, opened_at: float, seq: int) -> Manifest:
        """What the head says of it all."""
        ...

    def release(self) -> None:
        """Let go. May be called again; nothing else may follow."""
        ...


class Restore(Protocol):
    """A state on its way back. Nothing of it is seen by any session before ``finish``.

    OutOfRoomError from ``put`` changes nothing, and the call may be made again when there is
    room. After any other error, and after ``abort``, nothing of the restore is held.
    """

    @property
    def position(self) -> int:
        """The grid line at which the state will stand."""
        ...

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """What is still to be put, in any order."""
        ...

    def put(self, piece: Piece, tensors: Mapping[str, RawTensor]) -> None:
        """Upload one of ``pieces`` and check every tensor of it that is used.

        Raises:
            SnapshotError: it is refused. OutOfRoomError: no room for its pages.
        """
        ...

    def finish(self) -> int:
        """Check the state digests and let the session stand on the state; its line.

        Raises:
            SnapshotError: the state is not the one that was spilled.
        """
        ...

    def abort(self) -> None:
        """Let go of everything. May be called again, and does nothing after ``finish``."""
        ...


class Writing(Protocol):
    """Ids that the model writes on a fork; what it stands on is held until ``release``."""

    def next(self, count: int, stops: Collection[int]) -> tuple[int, ...]:
        """Write so many ids, or up to one of ``stops``, which is not among them; fewer than
        ``count``: it is over."""
        ...

    def release(self) -> None:
        """Let go of everything. May be called again."""
        ...


class Engine(Protocol):
    """Holds session states on the grid. A session it does not know stands at position 0."""

    @property
    def identity(self) -> EngineIdentity:
        """What decides the bits."""
        ...

    @property
    def vocabulary(self) -> int:
        """Embedding rows: ids are below."""
        ...

    @property
    def context_ids(self) -> int:
        """Longest sequence the model takes."""
        ...

    @property
    def layers(self) -> int:
        """Decoder layers of the model."""
        ...

    @property
    def hidden(self) -> int:
        """Numbers in a hidden vector."""
        ...

    def align(self, session: str, known: Ids) -> Aligned:
        """Bring the state back to ids that ``known`` begins with.

        When what was read differs from ``known``, the state goes back to the newest checkpoint at
        or below the first difference, or to zero. A cut at or above committed costs nothing.
        A state that is at zero or went back then starts at the deepest line of ``known`` that
        anything resident has a state for; it takes no memory for that.
        """
        ...

    def read_chunk(self, session: str, known: Ids) -> int:
        """Read the chunk [committed, committed + grid) of ``known``; the new committed.

        ``known`` must begin with what was read (``align`` first) and reach the next grid line.
        Where sessions part, and no state is left, it leaves a prefix point for the next one.

        Raises:
            OutOfRoomError: nothing was read.
        """
        ...

    def checkpoint(self, session: str) -> str:
        """Set the state aside at its grid line (the oldest of six goes); its digest.

        It takes memory only when the session reads on.

        Raises:
            OutOfRoomError: the device has no memory for the digest; no checkpoint was taken.
        """
        ...

    def ask(
        self,
        session: str,
        *,
        tail: Ids,
        question: Ids,
        letters: Sequence[int],
        line: int | None = None,
    ) -> tuple[float, ...]:
        """Probabilities of ``letters`` (softmax over these alone) after tail + question.

        A fork: nothing of the session changes, whatever happens.

        Args:
            line: what lies below the tail: 0, the line of a checkpoint, or the committed line, as
                without it.

        Raises:
            OutOfRoomError: the fork would pass the cap.
        """
        ...

    def vectors(
        self,
        session: str,
        *,
        tail: Ids,
        layers: Sequence[int],
        last: int,
        line: int | None = None,
    ) -> NDArray[np.float32]:
        """What ``layers`` make of the last ``last`` ids of ``tail``, or of all where it has fewer.

        [len(layers), hidden] float32: the mean of the hidden vectors, in float32. A layer below
        ``self.layers``: the residual stream after that decoder layer, counted from 0; that number
        itself: after the final norm. ``tail`` has at least one id. A fork: nothing of the session
        changes.

        Args:
            line: as in ``ask``.

        Raises:
            OutOfRoomError: the fork would pass the cap.
        """
        ...

    def write(
        self, session: str, *, tail: Ids, prompt: Ids, most: int, line: int | None = None
    ) -> Writing:
        """Begin to write at most ``most`` ids after tail + prompt; ``line`` as in ``ask``.

        Raises:
            OutOfRoomError: its rows and state would pass the cap.
        """
        ...

    def digest(self, session: str) -> str:
        """The state digest at the committed grid line."""
        ...

    def export(self, session: str, *, limit_bytes: int) -> bytes:
        """The whole state as one safetensors file, with the identity in its metadata.

        Raises:
            TooLargeError: it would pass ``limit_bytes``.
        """
        ...

    def drop(self, session: str, *, erased: bool = False) -> int:
        """Let go of everything held for the session; the bytes that nobody else holds.

        Args:
            erased: forget its name too, so that no prefix point is kept for it alone.
        """
        ...

    def give_way(self, sessions: Sequence[str], *, newest: bool = True) -> int:
        """Free the next thing that may go before a session does; its bytes, 0 if there is none.

        First prefix points; then the checkpoints of ``sessions`` in this order, lowest first,
        the newest of each only when all others are gone. Never what a session stands on.

        Args:
            sessions: the least recently heard of first, the one in need last; none that was
                heard of later than that one.
            newest: False: the newest checkpoint of each stays; its next prompt may go back to it.
        """
        ...

    def pin(self, session: str, written: Sequence[Span] = ()) -> Pinned | None:
        """Hold the state as it is committed now, to copy it out; None where none is resident.

        Args:
            written: pages [start, stop) of the pieces that an earlier spill wrote.
        """
        ...

    def begin_restore(
        self, session: str, manifest: Manifest, head: Mapping[str, RawTensor], known: Ids
    ) -> Restore:
        """Begin to bring a spilled state back, up to the newest line that ``known`` agrees with.

        The session must have no state. Pages that others hold already are not read again.

        Raises:
            SnapshotError: another engine's, or it contradicts itself or its tensors' digests, or
                no line of it agrees with ``known``. OutOfRoomError: no room for its states.
        """
        ...

    def host_buffer(self, size: int) -> memoryview:
        """Memory to read a snapshot's file into, from where it goes to the device fastest.

        Safe on any thread; whatever is in it.
        """
        ...

    def synchronise(self) -> None:
        """Wait until the device has done all that was given to it, by whomever in this process."""
        ...

    def state_stats(self, session: str) -> StateStats | None:
        """The session's resident state, None where there is none. Safe on any thread."""
        ...

    def stats(self) -> EngineStats:
        """Totals. Safe on any thread."""
        ...

    def close(self) -> None:
        """Let go of all states and of the model."""
        ...

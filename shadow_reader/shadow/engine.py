"""What the reader loop drives: an engine that holds the states of many sessions.

Every method but the properties runs on the one device thread; no two run at once. The engine knows
nothing of the journal, of turns or of time: it is told ids and says what it did. ``TorchEngine``
(``torch_engine.py``) is the real one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

from shadow_reader.events.ids import Ids


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
    """

    committed: int
    cut: int | None = None

    @property
    def reread(self) -> int:
        """Ids below the cut that must be read again."""
        return 0 if self.cut is None else self.cut - self.committed


@dataclass(frozen=True, slots=True)
class StateStats:
    """One resident state: where it stands, what it takes, where its checkpoints are."""

    committed: int
    pages: int
    bytes: int
    checkpoints: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EngineStats:
    """All resident states: bytes in pages (whole slabs), states and checkpoints, and the cap."""

    bytes: int
    peak_bytes: int
    cap_bytes: int
    weights_bytes: int
    sessions: int


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

    def align(self, session: str, known: Ids) -> Aligned:
        """Bring the state back to ids that ``known`` begins with.

        When what was read differs from ``known``, the state goes back to the newest checkpoint at
        or below the first difference, or to zero. A cut at or above committed costs nothing.
        """
        ...

    def read_chunk(self, session: str, known: Ids) -> int:
        """Read the chunk [committed, committed + grid) of ``known``; the new committed.

        ``known`` must begin with what was read (``align`` first) and reach the next grid line.

        Raises:
            OutOfRoomError: nothing was read.
        """
        ...

    def checkpoint(self, session: str) -> str:
        """Copy the state aside at its grid line (the oldest of six goes); its digest.

        Raises:
            OutOfRoomError: no checkpoint was taken.
        """
        ...

    def ask(
        self, session: str, *, tail: Ids, question: Ids, letters: Sequence[int]
    ) -> tuple[float, ...]:
        """Probabilities of ``letters`` (softmax over these alone) after tail + question.

        A fork above the committed rows: nothing of the session changes, whatever happens.

        Raises:
            OutOfRoomError: the fork would pass the cap.
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

    def drop(self, session: str) -> int:
        """Let go of everything held for the session; the bytes freed."""
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

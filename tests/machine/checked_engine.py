"""The real engine, with the laws that bind a single call looked at in every call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shadow_reader.events.ids import Ids
from shadow_reader.events.snapshots import Manifest, RawTensor, Span
from shadow_reader.shadow.engine import Aligned
from shadow_reader.shadow.lease import Lease
from shadow_reader.shadow.restore import RestoringState
from shadow_reader.shadow.spill import PinnedState
from shadow_reader.shadow.standing import Standing
from shadow_reader.shadow.torch_engine import TorchEngine

GRID: Final = 64


class CheckedEngine(TorchEngine):
    """Laws 3, 4 and 5.

    Attributes:
        lease: once the service has one. closing: nobody else uses the device any more.
        from_zero: told (session, known) before a session is read from zero that had no state since
            it last left memory.
        chunks: (session, where it begins) of every chunk read.
    """

    lease: Lease | None = None
    closing: Callable[[], bool] = staticmethod(lambda: False)
    from_zero: Callable[[str, Ids], None] = staticmethod(lambda _session, _known: None)

    def watch(
        self, lease: Lease, closing: Callable[[], bool], from_zero: Callable[[str, Ids], None]
    ) -> None:
        """Look from now on."""
        self.lease, self.closing, self.from_zero = lease, closing, from_zero
        self.chunks: list[tuple[str, int]] = []
        self._stood: set[str] = set()

    def read_of(self, session: str) -> Ids:
        """The ids that the session's state has read."""
        return self._state(session).ids

    def residents(self) -> list[str]:
        """Sessions with a state."""
        return list(self._sessions)

    def true_digest(self, session: str) -> str:
        """The digest of the bits as they lie, nothing remembered."""
        return self._state(session).digest(recompute=True)

    def align(self, session: str, known: Ids) -> Aligned:
        """Law 4: back to the newest state that holds, and no further."""
        self._alone()
        before = self.state_stats(session)
        cut = self.read_of(session).common_prefix(known)
        found = super().align(session, known)
        if before is not None:
            lines = [line for line in (*before.checkpoints, before.committed) if line <= cut]
            assert found.committed >= max(lines, default=0), "law 4: further back than it must"
            if cut == before.committed:
                assert found.cut is None, "law 4: a cut above what was read"
        self._reads_known(session, known)
        return found

    def read_chunk(self, session: str, known: Ids) -> int:
        """Laws 4 and 5: on from where it stands, and only while no request has the device."""
        self._alone()
        stats = self.state_stats(session)
        start = stats.committed if stats else 0
        if not start and session not in self._stood:
            self.from_zero(session, known)
        stop = super().read_chunk(session, known)
        assert stop == start + GRID
        self.chunks.append((session, start))
        self._stood.add(session)
        self._reads_known(session, known)
        return stop

    def checkpoint(self, session: str) -> str:
        """Law 5."""
        self._alone()
        return super().checkpoint(session)

    def ask(
        self,
        session: str,
        *,
        tail: Ids,
        question: Ids,
        letters: Sequence[int],
        line: int | None = None,
    ) -> tuple[float, ...]:
        """Law 3: nothing of any session changes, in any bit."""
        with self._leaving_nothing(session):
            return super().ask(session, tail=tail, question=question, letters=letters, line=line)

    def vectors(
        self,
        session: str,
        *,
        tail: Ids,
        layers: Sequence[int],
        last: int,
        line: int | None = None,
    ) -> NDArray[np.float32]:
        """Law 3: nothing of any session changes, in any bit."""
        with self._leaving_nothing(session):
            return super().vectors(session, tail=tail, layers=layers, last=last, line=line)

    @contextmanager
    def _leaving_nothing(self, session: str) -> Iterator[None]:
        self._alone()
        before = {name: self.digest(name) for name in self._sessions}
        stats = self.state_stats(session), self.stats().bytes
        try:
            yield
        finally:
            assert {name: self.digest(name) for name in self._sessions} == before, "law 3"
            if session in before:
                assert self.true_digest(session) == before[session], "law 3"
            assert (self.state_stats(session), self.stats().bytes) == stats, "law 3"

    def pin(self, session: str, written: Sequence[Span] = ()) -> PinnedState | None:
        """Law 5."""
        self._alone()
        return super().pin(session, written)

    def begin_restore(
        self, session: str, manifest: Manifest, head: Mapping[str, RawTensor], known: Ids
    ) -> RestoringState:
        """Law 5."""
        self._alone()
        return super().begin_restore(session, manifest, head, known)

    def drop(self, session: str, *, erased: bool = False) -> int:
        """From now on it is out of memory."""
        self._stood.discard(session)
        return super().drop(session, erased=erased)

    def _install(self, session: str, standing: Standing) -> None:
        super()._install(session, standing)
        self._stood.add(session)

    def _alone(self) -> None:
        if self.lease is not None and not self.closing():
            holders = [(holder.rank, holder.owner) for holder in self.lease.status().holders]
            assert len(holders) == 1, f"law 5: {holders}"
            assert holders[0][0] != "request", "law 5"

    def _reads_known(self, session: str, known: Ids) -> None:
        read = self.read_of(session)
        assert read.common_prefix(known) == len(read), "it stands on ids that are not known"

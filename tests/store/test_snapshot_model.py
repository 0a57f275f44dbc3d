"""Any order of spills, erasures, sweeps, re-openings, clock jumps and failures, against a model.

The model keeps, by session, the snapshots that may be found there, in the order of their use. The
disk measures the folder at every call that changes it, so the cap is never passed for a moment.
"""

from __future__ import annotations

import errno
import tempfile
from contextlib import suppress
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shadow_reader.clock import ManualClock
from shadow_reader.errors import SnapshotError, SnapshotFullError
from tests.fakes import EFFORT
from tests.store.snapshot_disk import Crash, TestDisk
from tests.store.snapshot_samples import (
    TTL_S,
    Sample,
    file_bytes,
    files_of,
    opened,
    restored,
    same,
    sample,
    spill,
)

CAP = 9_000
VERSIONS = [("a", 1), ("ab", 2), ("bc", 3), ("abc", 4), ("d", 5), ("", 6)]
sessions = st.sampled_from(["one", "two", "drei", "ü/../x"])
versions = st.sampled_from(VERSIONS)
steps = st.integers(0, 45)


class SnapshotModel(RuleBasedStateMachine):
    """A store and what it may hold: ``model[session]``, the least recently used session first."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.root = Path(self.folder.name) / "snapshots"
        self.clock = ManualClock()
        self.disk = TestDisk(self.root, CAP)
        self.store = opened(self.root, cap=CAP, clock=self.clock, disk=self.disk)
        self.model: dict[str, tuple[Sample, float]] = {}
        self.future_since: dict[str, float] = {}

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()

    @rule(session=sessions, version=versions, rows=st.sampled_from([20, 150]))
    def spill(self, session: str, version: tuple[str, int], rows: int) -> None:
        new = sample(session, version[0], seq=version[1], rows=rows)
        before = files_of(self.root)
        try:
            spill(self.store, new)
        except SnapshotFullError:
            assert sum(before.values()) + 2 * rows * 10 * len(version[0]) + 5_000 > CAP
            self._only_evicted(session)
        else:
            self._only_evicted(session)
            self._put(new)

    @rule(session=sessions, version=versions, step=steps, after=st.booleans(), crash=st.booleans())
    def break_off(
        self, session: str, version: tuple[str, int], step: int, after: bool, crash: bool
    ) -> None:
        new = sample(session, version[0], seq=version[1])
        self.disk.steps.clear()
        self.disk.fail_at, self.disk.after, self.disk.crash = step, after, crash
        self.disk.error = errno.ENOSPC if step % 2 else errno.EIO
        with suppress(SnapshotError, Crash):
            spill(self.store, new)
        self._mend()
        self._only_evicted(session)
        found = self.store.find(session)
        old = self.model.get(session, (None, 0))[0]
        if found is None:
            assert old is None
        elif old is None or found != old.manifest:
            self._put(new)

    @rule(session=sessions, version=versions)
    def give_up(self, session: str, version: tuple[str, int]) -> None:
        new = sample(session, version[0], seq=version[1])
        with suppress(SnapshotFullError):
            for piece in new.manifest.pieces:
                self.store.write_piece(session, piece, new.pieces[piece.name])
        self.store.abandon(session)
        self._only_evicted(session)

    @rule(session=sessions, step=st.none() | st.integers(0, 6), after=st.booleans())
    def erase(self, session: str, step: int | None, after: bool) -> None:
        there = session in self.model
        self.disk.steps.clear()
        self.disk.fail_at, self.disk.after = step, after
        try:
            assert self.store.erase(session) == there
        except SnapshotError:
            self.disk.fail_at = None
            self.store.erase(session)
        self.disk.fail_at = None
        self._drop(session)
        assert file_bytes(self.root, session) == 0

    @rule(session=sessions)
    def restore(self, session: str) -> None:
        found = restored(self.store, session)
        assert (found is None) == (session not in self.model)
        if found is not None:
            self.model[session] = self.model.pop(session)

    @rule()
    def sweep(self) -> None:
        self._sweep()

    @rule(hours=st.sampled_from([1, 30, 100]))
    def advance(self, hours: int) -> None:
        self.clock.advance(hours * 3600)

    @rule(hours=st.sampled_from([-1000, -3, 5]))
    def jump(self, hours: int) -> None:
        self.clock.jump(hours * 3600)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self._open()

    @invariant()
    def it_holds_the_model(self) -> None:
        for session in ("one", "two", "drei", "ü/../x"):
            found = self.store.find(session)
            expected = self.model.get(session)
            assert found == (expected[0].manifest if expected else None)
        stats = self.store.stats()
        assert stats.bytes == sum(files_of(self.root).values()) <= stats.peak_bytes <= CAP
        assert self.disk.most <= CAP
        assert stats.sessions == len(self.model)
        names = sum(1 + len(s.pieces) for s, _ in self.model.values()) + 1
        assert len(files_of(self.root)) == names

    @invariant()
    def it_reads_back_bit_for_bit(self) -> None:
        for session, (expected, _) in self.model.items():
            manifest = self.store.find(session)
            assert manifest is not None
            pieces = {p.name: self.store.read_piece(manifest, p) for p in manifest.pieces}
            assert same(Sample(manifest, expected.head, pieces), expected)

    def _put(self, new: Sample) -> None:
        self._drop(new.manifest.session)
        self.model[new.manifest.session] = new, self.clock.wall()

    def _only_evicted(self, keep: str) -> None:
        """What went was used before all that stayed, and is not the session itself."""
        others = [session for session in self.model if session != keep]
        gone = [session for session in others if self.store.find(session) is None]
        assert gone == others[: len(gone)]
        for session in gone:
            self._drop(session)

    def _mend(self) -> None:
        crashed = self.disk.crashed
        self.disk.fail_at, self.disk.crash, self.disk.crashed = None, False, False
        if crashed:
            self.store.close()
            self._open()
        else:
            self.store.sweep()  # what could not be removed goes now
            self._expire()

    def _open(self) -> None:
        self.future_since.clear()
        self._expire()
        self.store = opened(self.root, cap=CAP, clock=self.clock, disk=self.disk)

    def _sweep(self) -> None:
        before = set(self.model)
        self._expire()
        assert set(self.store.sweep()) == before - set(self.model)

    def _expire(self) -> None:
        """A head from the future is as old as it has been seen there since the opening."""
        for session, (_, written_at) in tuple(self.model.items()):
            age_s = self.clock.wall() - written_at
            if age_s >= 0:
                self.future_since.pop(session, None)
            else:
                since = self.future_since.setdefault(session, self.clock.monotonic())
                age_s = self.clock.monotonic() - since
            if age_s > TTL_S:
                self._drop(session)

    def _drop(self, session: str) -> None:
        self.model.pop(session, None)
        self.future_since.pop(session, None)


SnapshotModel.TestCase.settings = settings(max_examples=25 * EFFORT, stateful_step_count=50)
TestSnapshotModel = SnapshotModel.TestCase

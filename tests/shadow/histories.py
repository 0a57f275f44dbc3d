"""Random histories of several sessions, against a second, plainer account of what must happen.

Every rule is one thing the reader does to an engine. ``expected.Family`` knows only lists of ids
and the rules; the machine compares positions, forwards, bytes and, at the end, every bit. The
sessions begin alike, part, and come together again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from numpy.typing import NDArray

from shadow_reader.errors import OutOfRoomError, SnapshotError
from shadow_reader.events.ids import Ids
from shadow_reader.shadow.model.facts import least_bytes
from shadow_reader.shadow.prefixes import Point
from shadow_reader.shadow.spill import PinnedState
from shadow_reader.shadow.torch_engine import TorchEngine
from tests.shadow.expected import CUTS, Expected, Family, cut_place
from tests.shadow.models import Watched, tripping
from tests.shadow.snapshots import Snapshot, bring_back, copy_out
from tests.shadow.states import (
    assert_all_is_counted,
    assert_like_fresh,
    make_ids,
    read_all,
    same_bits,
    tensors,
)

GRID = 64
LONGEST = 9 * GRID + GRID // 2
LETTERS = (5, 9, 11)
T = TypeVar("T")

MOST_PINS = 2
MOST_SNAPSHOTS = 4

NAMES = ("a", "b", "c", "d", "e")
sessions = st.sampled_from(NAMES)
orders = st.permutations(NAMES)
seeds = st.integers(0, 1_000_000)
errors = st.sampled_from(
    [RuntimeError, KeyboardInterrupt, asyncio.CancelledError, MemoryError, torch.OutOfMemoryError]
)


class Histories(RuleBasedStateMachine):
    """See the module. Subclasses choose the model; ``tight`` ones have caps that refuse."""

    tight = False
    stages: tuple[str, ...] = ("forward", "forwarded", "logits")

    def make_model(self) -> Watched:
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.model = self.make_model()
        self.family = Family(GRID)
        self.digests: dict[tuple[int, ...], str] = {}
        self.vectors_of: dict[tuple[int, tuple[int, ...], int, int], bytes] = {}
        self.pins: list[PinnedState] = []
        self.snapshots: list[tuple[Snapshot, Expected]] = []
        self.engine: TorchEngine

    @initialize(spare=st.integers(0, 100))
    def start(self, spare: int) -> None:
        config, dtype = self.model.config, self.model.dtype
        page_bytes = GRID * config.row_bytes(dtype.itemsize)
        cap = least_bytes(config, dtype.itemsize, GRID) + spare * page_bytes // 5
        self.engine = TorchEngine(
            self.model, grid=GRID, cap_bytes=cap if self.tight else 1 << 28, poison=True
        )

    @rule(
        session=sessions,
        like=sessions,
        kind=st.sampled_from(CUTS),
        where=seeds,
        more=st.integers(1, LONGEST),
        most=st.integers(0, 9),
    )
    def prompt(self, session: str, like: str, kind: str, where: int, more: int, most: int) -> None:
        """A prompt that begins like this session's last one or another's, and is read a while."""
        model = self.family.session(like)
        old = model.known
        cut = cut_place(kind, model, where, GRID)
        new = old[:cut]
        if kind != "shorter":
            new = new + list(make_ids(more, where))
            if cut < len(old):
                new[cut] = (old[cut] + 1) % 256
        self.family.session(session).known = new[:LONGEST]
        self.aligned(session)
        self.read(session, most, mark_all=False)
        if where % 2:
            self.checkpoint(session)

    @rule(session=sessions, more=st.integers(1, 130), seed=seeds)
    def output(self, session: str, more: int, seed: int) -> None:
        expected = self.family.session(session)
        expected.known = (expected.known + list(make_ids(more, seed)))[:LONGEST]
        self.aligned(session)

    def aligned(self, session: str) -> None:
        """Align; no forward may happen, and the plain account says where it ends."""
        known = Ids.of(self.family.session(session).known)
        before, held = len(self.model.calls), self.engine.stats().bytes
        found = self.engine.align(session, known)
        assert (found.committed, found.cut, found.shared) == self.family.align(session)
        assert len(self.model.calls) == before
        assert self.engine.stats().bytes <= held
        self.digest_is_of_the_ids(session)

    @rule(session=sessions, most=st.integers(1, 9), mark_all=st.booleans())
    def read(self, session: str, most: int, mark_all: bool) -> None:
        expected = self.family.session(session)
        known = Ids.of(expected.known)
        for _ in range(most):
            start = len(expected.read)
            if start + GRID > len(known):
                return
            before = len(self.model.calls)
            done = self.attempt(session, lambda: self.engine.read_chunk(session, known))
            if done is None:
                return
            assert done == start + GRID
            assert self.model.calls[before:] == [(start, GRID)]
            expected.read = expected.known[:done]
            self.family.arrived(session)
            if mark_all:
                self.checkpoint(session)

    @rule(session=sessions)
    def checkpoint(self, session: str) -> None:
        expected = self.family.session(session)
        digest = self.attempt(session, lambda: self.engine.checkpoint(session))
        if digest is not None:
            expected.checkpoint()
            assert digest == self.engine.digest(session)
            self.digest_is_of_the_ids(session)

    def digest_is_of_the_ids(self, session: str) -> None:
        """The same ids read have the same digest, other ids another one, whatever came between."""
        digest = self.engine.digest(session)
        assert self.digests.setdefault(tuple(self.family.session(session).read), digest) == digest
        assert len(set(self.digests.values())) == len(self.digests)

    @rule(session=sessions, count=st.integers(1, 90), seed=seeds)
    def ask(self, session: str, count: int, seed: int) -> None:
        before = tensors(self.engine, session)
        stats = self.engine.state_stats(session), self.engine.stats().bytes
        odds = self.attempt(session, lambda: self.asked(session, count, seed))
        if odds is not None:
            assert sum(odds) == pytest.approx(1.0)
        assert same_bits(before, tensors(self.engine, session))
        assert stats == (self.engine.state_stats(session), self.engine.stats().bytes)

    @rule(
        session=sessions,
        layers=st.lists(st.integers(0, 2), min_size=1, max_size=3),
        last=st.integers(1, 90),
        seed=seeds,
    )
    def vectors(self, session: str, layers: list[int], last: int, seed: int) -> None:
        """Nothing changes, and whatever came between, the same ids give the same vectors."""
        before = tensors(self.engine, session)
        stats = self.engine.state_stats(session), self.engine.stats().bytes
        found = self.attempt(session, lambda: self.seen(session, layers, last, seed))
        assert same_bits(before, tensors(self.engine, session))
        assert stats == (self.engine.state_stats(session), self.engine.stats().bytes)
        if found is not None:
            expected = self.family.session(session)
            for layer, vector in zip(layers, found, strict=True):
                ids = (*expected.known, *make_ids(3, seed))
                key = len(expected.read), ids, layer, min(last, len(ids) - len(expected.read))
                assert self.vectors_of.setdefault(key, vector.tobytes()) == vector.tobytes()

    def seen(self, session: str, layers: list[int], last: int, seed: int) -> NDArray[np.float32]:
        expected = self.family.session(session)
        tail = Ids.of([*expected.known[len(expected.read) :], *make_ids(3, seed)])
        return self.engine.vectors(session, tail=tail, layers=layers, last=last)

    @rule(session=sessions, reading=st.booleans(), error=errors, stage=st.integers(0, 20))
    def fails_within(
        self, session: str, reading: bool, error: type[BaseException], stage: int
    ) -> None:
        expected = self.family.session(session)
        known = Ids.of(expected.known)
        if not reading:
            where = self.stages[stage % len(self.stages)]
            self.fails(session, where, error, lambda: self.asked(session, 20, stage))
        elif len(expected.read) + GRID <= len(known):
            where = self.stages[stage % (len(self.stages) - 1)]
            self.fails(session, where, error, lambda: self.engine.read_chunk(session, known))

    @rule(session=sessions, erased=st.booleans())
    def drop(self, session: str, erased: bool) -> None:
        stats, before = self.engine.state_stats(session), self.unshared_bytes()
        freed = self.engine.drop(session, erased=erased)
        assert freed == before - self.unshared_bytes()
        assert erased or freed <= (stats.bytes if stats else 0)
        assert self.engine.state_stats(session) is None
        if erased:
            self.family.erase(session)
        else:
            self.family.drop(session)

    @rule(order=orders, count=st.integers(1, 5), times=st.integers(1, 6))
    def give_way(self, order: Sequence[str], count: int, times: int) -> None:
        """Something is freed that may go, or nothing has changed; ``Family`` is told what."""
        order = order[:count]
        for _ in range(times):
            before, points = self.unshared_bytes(), set(self.family.points)
            freed = self.engine.give_way(order)
            assert freed == before - self.unshared_bytes()
            lost = points - {ids_of(point) for point in self.engine._points}
            for point in lost:
                del self.family.points[point]
            gone = 0
            for session, expected in self.family.sessions.items():
                stats = self.engine.state_stats(session)
                kept = list(stats.checkpoints) if stats else []
                gone += len(expected.checkpoints) - len(kept)
                assert session in order or kept == expected.checkpoints
                expected.checkpoints = kept
            assert bool(freed) == bool(lost or gone)

    @rule(session=sessions)
    def pin(self, session: str) -> None:
        pinned = self.engine.pin(session)
        expected = self.family.session(session)
        assert (pinned is None) == (not expected.read)
        if pinned is None:
            return
        if len(self.pins) == MOST_PINS:
            self.copied(0, keep=False)
        self.pins.append(pinned)
        self.family.pins.append(deepcopy(expected))

    @rule(which=seeds, keep=st.booleans())
    def copied(self, which: int, keep: bool) -> None:
        """Copy a pinned state out; it is what was committed when it was pinned."""
        if not self.pins:
            return
        which %= len(self.pins)
        held, then = self.engine.stats().bytes, self.family.pins[which]
        snapshot = copy_out(self.pins[which])
        manifest = snapshot.manifest
        assert self.engine.stats().bytes == held
        ids = tuple(then.read)
        assert self.digests.setdefault(ids, manifest.digest) == manifest.digest
        assert [line for line, _ in manifest.checkpoints] == then.checkpoints
        for line, digest in manifest.checkpoints:
            assert self.digests.setdefault(ids[:line], digest) == digest
        self.snapshots = [*self.snapshots, (snapshot, deepcopy(then))][-MOST_SNAPSHOTS:]
        if not keep:
            self.pins.pop(which).release()
            self.family.pins.pop(which)

    @rule(session=sessions, which=seeds)
    def restore(self, session: str, which: int) -> None:
        """Bring a snapshot back in place of the session's state, as far as its ids agree."""
        if which % 2 or not self.snapshots:
            self.pin(session)
            self.copied(-1, keep=False)
        if not self.snapshots:
            return
        snapshot, then = self.snapshots[-1 - which // 2 % len(self.snapshots)]
        self.engine.drop(session)
        self.family.drop(session)
        expected = self.family.session(session)
        known = Ids.of(expected.known)
        common = Ids.of(then.read).common_prefix(known)
        line = max((line for line in then.lines if line <= common), default=0)
        held, calls = self.engine.stats().bytes, len(self.model.calls)
        try:
            assert bring_back(self.engine, session, snapshot, known) == line
        except OutOfRoomError:
            assert self.tight
        except SnapshotError:
            assert not line
        if self.engine.state_stats(session) is None:
            assert self.engine.stats().bytes == held
            return
        assert len(self.model.calls) == calls
        expected.read = expected.known[:line]
        expected.checkpoints = [mark for mark in then.checkpoints if mark <= line]
        self.family.passes(session, expected.read)
        self.aligned(session)

    def asked(self, session: str, count: int, seed: int) -> tuple[float, ...]:
        expected = self.family.session(session)
        tail = Ids.of(expected.known[len(expected.read) :])
        question = make_ids(count, seed)
        return self.engine.ask(session, tail=tail, question=question, letters=LETTERS)

    def attempt(self, session: str, job: Callable[[], T]) -> T | None:
        """Do it; under a tight cap it may be refused, and then nothing may have changed."""
        if not self.tight:
            return job()
        before = self.whole(session)
        try:
            return job()
        except OutOfRoomError as error:
            refusal = error
        assert refusal.details["asked"] > refusal.details["left"]
        assert same_bits(before[0], self.whole(session)[0])
        assert before[1:] == self.whole(session)[1:]
        return None

    def fails(
        self, session: str, stage: str, error: type[BaseException], job: Callable[[], Any]
    ) -> None:
        """Do it with ``error`` raised at ``stage``: nothing may have changed."""
        before = self.whole(session)
        mapped = OutOfRoomError if error is torch.OutOfMemoryError else error
        accepted = (mapped, OutOfRoomError) if self.tight else (mapped,)
        with tripping(self.model, stage, error("injected")), pytest.raises(accepted):
            job()
        assert same_bits(before[0], self.whole(session)[0])
        assert before[1:] == self.whole(session)[1:]

    def whole(self, session: str) -> tuple[dict[str, torch.Tensor], Any, int]:
        """Everything of a session that can be seen, and the engine's bytes."""
        stats = self.engine.state_stats(session)
        return tensors(self.engine, session), stats, self.engine.stats().bytes

    @invariant()
    def everything_is_where_it_must_be(self) -> None:
        if not hasattr(self, "engine"):
            return
        stats = self.engine.stats()
        assert_all_is_counted(self.engine, *(pinned._standing for pinned in self.pins))
        assert stats.bytes <= stats.peak_bytes <= stats.cap_bytes
        resident = 0
        for session, expected in self.family.sessions.items():
            found = self.engine.state_stats(session)
            assert (found is None) == (not expected.read)
            if found is not None:
                resident += 1
                assert found.committed == len(expected.read)
                assert list(found.checkpoints) == expected.checkpoints
        assert (stats.sessions, stats.prefix_points) == (resident, len(self.family.points))
        named = [(ids_of(point), set(point.names)) for point in self.engine._points]
        assert named == list(self.family.points.items())

    def unshared_bytes(self) -> int:
        """Bytes of all pages and states that anybody holds, each once; slabs do not count."""
        pool, memory = self.engine._pool, self.engine._memory
        return pool.pages * pool.page_bytes + len(memory._states) * memory.state_bytes

    def teardown(self) -> None:
        """Every session equals a fresh prefill; then, read to its end, again."""
        if not hasattr(self, "engine"):
            return
        for session, expected in self.family.sessions.items():
            known = Ids.of(expected.known)
            assert_like_fresh(self.engine, session, known, self.model)
            if not self.tight:
                read_all(self.engine, session, known)
                assert_like_fresh(self.engine, session, known, self.model)
        for pinned in self.pins:
            copy_out(pinned)
            pinned.release()
        for session in self.family.sessions:
            self.engine.drop(session, erased=True)
        assert (self.engine.stats().bytes, self.engine.stats().prefix_points) == (0, 0)


def ids_of(point: Point) -> tuple[int, ...]:
    """The ids that the point's pages were read from."""
    return tuple(i for page in point.pages for i in Ids.from_bytes(page.ids))

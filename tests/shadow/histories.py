"""Random histories of several sessions, against a second, plainer account of what must happen.

Every rule is one thing the reader does to an engine. ``Expected`` knows only lists of ids and the
checkpoint rule; the machine compares positions, forwards, bytes and, at the end, every bit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from shadow_reader.errors import OutOfRoomError
from shadow_reader.events.ids import Ids
from shadow_reader.shadow.torch_engine import TorchEngine, least_bytes
from tests.shadow.models import Watched, tripping
from tests.shadow.states import (
    assert_like_fresh,
    make_ids,
    read_all,
    really_held,
    same_bits,
    tensors,
)

GRID = 64
LONGEST = 9 * GRID + GRID // 2
LETTERS = (5, 9, 11)
CUTS = ("mark", "below", "agree", "early", "late", "line", "before", "after", "mark", "shorter")
"""Where a prompt leaves the old one: at ids of that name, at a grid line or one off it, at a
checkpoint or one below, or anywhere with nothing behind (shorter)."""

T = TypeVar("T")

sessions = st.sampled_from(["a", "a", "b"])
seeds = st.integers(0, 1_000_000)
errors = st.sampled_from(
    [RuntimeError, KeyboardInterrupt, asyncio.CancelledError, MemoryError, torch.OutOfMemoryError]
)


@dataclass
class Expected:
    """What must be true of one session."""

    known: list[int] = field(default_factory=list)
    read: list[int] = field(default_factory=list)
    checkpoints: list[int] = field(default_factory=list)

    def align(self) -> tuple[int, int | None]:
        """The checkpoint rule: (committed, cut) after the known ids have changed."""
        pairs = zip(self.known, self.read, strict=False)
        shortest = min(len(self.known), len(self.read))
        cut = next((i for i, (a, b) in enumerate(pairs) if a != b), shortest)
        if cut >= len(self.read):
            return len(self.read), None
        self.checkpoints = [line for line in self.checkpoints if line <= cut]
        self.read = self.read[: max(self.checkpoints, default=0)]
        return len(self.read), cut

    def checkpoint(self) -> None:
        """Six at most, none at 0, none twice."""
        if self.read and len(self.read) not in self.checkpoints:
            self.checkpoints = [*self.checkpoints, len(self.read)][-6:]


def cut_place(kind: str, expected: Expected, where: int) -> int:
    """A place in the known ids of one kind; ``where`` chooses among those of a kind."""
    length = len(expected.known)
    line = GRID * (where % (length // GRID + 1))
    marks = expected.checkpoints or [line]
    mark = marks[where % len(marks)]
    place = {
        "agree": length,
        "early": where % 4,
        "late": length - 1 - where % 4,
        "line": line,
        "before": line - 1,
        "after": line + 1,
        "mark": mark,
        "below": mark - 1,
    }.get(kind, where % (length + 1))
    return min(max(place, 0), length)


class Histories(RuleBasedStateMachine):
    """See the module. Subclasses choose the model; ``tight`` ones have caps that refuse."""

    tight = False
    stages: tuple[str, ...] = ("forward", "forwarded", "logits")

    def make_model(self) -> Watched:
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.model = self.make_model()
        self.expected: dict[str, Expected] = {}
        self.digests: dict[tuple[int, ...], str] = {}
        self.engine: TorchEngine

    @initialize(spare=st.integers(0, 100))
    def start(self, spare: int) -> None:
        config, dtype = self.model.config, self.model.dtype
        page_bytes = GRID * config.row_bytes(dtype.itemsize)
        cap = least_bytes(config, dtype, GRID) + spare * page_bytes // 5
        self.engine = TorchEngine(
            self.model, grid=GRID, cap_bytes=cap if self.tight else 1 << 28, poison=True
        )

    @rule(session=sessions, kind=st.sampled_from(CUTS), where=seeds, more=st.integers(1, LONGEST))
    def prompt(self, session: str, kind: str, where: int, more: int) -> None:
        expected = self.expected.setdefault(session, Expected())
        old = expected.known
        cut = cut_place(kind, expected, where)
        new = old[:cut]
        if kind != "shorter":
            new += make_ids(more, where)
            if cut < len(old):
                new[cut] = (old[cut] + 1) % 256
        expected.known = new[:LONGEST]
        self.aligned(session)

    @rule(session=sessions, more=st.integers(1, 130), seed=seeds)
    def output(self, session: str, more: int, seed: int) -> None:
        expected = self.expected.setdefault(session, Expected())
        expected.known = (expected.known + list(make_ids(more, seed)))[:LONGEST]
        self.aligned(session)

    def aligned(self, session: str) -> None:
        """Align; no forward may happen, and the checkpoint rule says where it ends."""
        expected = self.expected[session]
        before = len(self.model.calls)
        found = self.engine.align(session, Ids.of(expected.known))
        assert (found.committed, found.cut) == expected.align()
        assert len(self.model.calls) == before
        self.digest_is_of_the_ids(session)

    @rule(session=sessions, most=st.integers(1, 9), mark_all=st.booleans())
    def read(self, session: str, most: int, mark_all: bool) -> None:
        expected = self.expected.setdefault(session, Expected())
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
            if mark_all:
                self.checkpoint(session)

    @rule(session=sessions)
    def checkpoint(self, session: str) -> None:
        expected = self.expected.setdefault(session, Expected())
        digest = self.attempt(session, lambda: self.engine.checkpoint(session))
        if digest is not None:
            expected.checkpoint()
            assert digest == self.engine.digest(session)
            self.digest_is_of_the_ids(session)

    def digest_is_of_the_ids(self, session: str) -> None:
        """The same ids read have the same digest, other ids another one, whatever came between."""
        digest = self.engine.digest(session)
        assert self.digests.setdefault(tuple(self.expected[session].read), digest) == digest
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

    @rule(session=sessions, reading=st.booleans(), error=errors, stage=st.integers(0, 20))
    def fails_within(
        self, session: str, reading: bool, error: type[BaseException], stage: int
    ) -> None:
        expected = self.expected.setdefault(session, Expected())
        known = Ids.of(expected.known)
        if not reading:
            where = self.stages[stage % len(self.stages)]
            self.fails(session, where, error, lambda: self.asked(session, 20, stage))
        elif len(expected.read) + GRID <= len(known):
            where = self.stages[stage % (len(self.stages) - 1)]
            self.fails(session, where, error, lambda: self.engine.read_chunk(session, known))

    @rule(session=sessions)
    def drop(self, session: str) -> None:
        stats = self.engine.state_stats(session)
        assert self.engine.drop(session) == (stats.bytes if stats else 0)
        assert self.engine.state_stats(session) is None
        if session in self.expected:
            self.expected[session] = Expected(known=self.expected[session].known)

    def asked(self, session: str, count: int, seed: int) -> tuple[float, ...]:
        expected = self.expected.get(session, Expected())
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
        assert really_held(self.engine) <= stats.bytes <= stats.peak_bytes <= stats.cap_bytes
        resident = 0
        for session, expected in self.expected.items():
            found = self.engine.state_stats(session)
            assert (found is None) == (not expected.read)
            if found is not None:
                resident += 1
                assert found.committed == len(expected.read)
                assert list(found.checkpoints) == expected.checkpoints
        assert stats.sessions == resident

    def teardown(self) -> None:
        """Every session equals a fresh prefill; then, read to its end, again."""
        if not hasattr(self, "engine"):
            return
        for session, expected in self.expected.items():
            known = Ids.of(expected.known)
            assert_like_fresh(self.engine, session, known, self.model)
            if not self.tight:
                read_all(self.engine, session, known)
                assert_like_fresh(self.engine, session, known, self.model)
        for session in self.expected:
            self.engine.drop(session)
        assert self.engine.stats().bytes == 0

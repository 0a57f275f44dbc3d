"""A state of twenty chunks with three checkpoints, and its snapshot."""

from __future__ import annotations

from shadow_reader.shadow.torch_engine import TorchEngine
from tests.shadow.models import Fake, Watched
from tests.shadow.snapshots import Snapshot, spill
from tests.shadow.states import GIB, make_ids, read_all

GRID = 64


KNOWN = make_ids(20 * GRID + 9, 1)


MARKS = (3, 12, 20)


def make_engine(model: Watched | None = None, cap_bytes: int = GIB) -> TorchEngine:
    return TorchEngine(model or Fake(), grid=GRID, cap_bytes=cap_bytes, poison=True)


def read_with_marks(engine: TorchEngine, session: str = "s") -> None:
    for mark in MARKS:
        read_all(engine, session, KNOWN.take(mark * GRID))
        engine.checkpoint(session)


def spilled(model: Watched | None = None) -> Snapshot:
    engine = make_engine(model)
    read_with_marks(engine)
    return spill(engine, "s")

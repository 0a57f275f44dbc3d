"""A restore that fails, is given up or finds no room leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import pytest
import torch

from shadow_reader.errors import OutOfRoomError, SnapshotError
from tests.shadow.models import MINIMAL
from tests.shadow.restoring import GRID, KNOWN, make_engine
from tests.shadow.snapshots import Snapshot, bring_back, put_all
from tests.shadow.states import assert_all_is_counted, make_ids, read_all


def test_a_put_without_room_may_be_made_again(snapshot: Snapshot) -> None:
    page, state = GRID * MINIMAL.row_bytes(4), MINIMAL.state_bytes(4)
    engine = make_engine(cap_bytes=24 * page + 5 * state)
    read_all(engine, "other", make_ids(5 * GRID, 8))
    restore = engine.begin_restore("s", snapshot.manifest, snapshot.head, KNOWN)
    held, pieces = engine.stats().bytes, restore.pieces
    first, second = pieces
    restore.put(first, snapshot.pieces[first.name])
    held = engine.stats().bytes
    with pytest.raises(OutOfRoomError):
        restore.put(second, snapshot.pieces[second.name])
    assert (restore.pieces, engine.stats().bytes) == ((second,), held)
    engine.drop("other")
    restore.put(second, snapshot.pieces[second.name])
    restore.finish()
    assert engine.digest("s") == snapshot.manifest.digest
    assert engine.stats().peak_bytes <= engine.stats().cap_bytes
    assert_all_is_counted(engine)


def test_a_restore_without_room_for_its_states_holds_nothing(snapshot: Snapshot) -> None:
    engine = make_engine(cap_bytes=2 * MINIMAL.state_bytes(4))
    with pytest.raises(OutOfRoomError, match="a restored state needs"):
        engine.begin_restore("s", snapshot.manifest, snapshot.head, KNOWN)
    assert engine.stats().bytes == 0


Injection = Callable[[BaseException], AbstractContextManager[Any]]


def failing(target: str, after: int) -> Injection:
    """Let the function fail at its call number ``after``."""

    def inject(error: BaseException) -> AbstractContextManager[Any]:
        module, _, name = f"shadow_reader.shadow.{target}".rpartition(".")
        real, calls = getattr(__import__(module, fromlist=[name]), name), 0

        def call(*arguments: Any, **others: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > after:
                raise error
            return real(*arguments, **others)

        return patch(f"{module}.{name}", call)

    return inject


STEPS = [
    *((f"from_host/{n}", failing("restore.from_host", n)) for n in range(5)),
    *((f"page hashes/{n}", failing("restore.tensor_hashes", n)) for n in range(2)),
    *((f"state hashes/{n}", failing("memory.tensor_hashes", n)) for n in range(3)),
    *((f"chain/{n}", failing("restore.chain", n)) for n in (0, 19)),
    *((f"digest/{n}", failing("restore.joined_digest", n)) for n in range(3)),
]


@pytest.mark.parametrize("inject", [step for _, step in STEPS], ids=[name for name, _ in STEPS])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, torch.OutOfMemoryError])
def test_a_restore_that_fails_anywhere_leaves_the_account_as_it_was(
    snapshot: Snapshot, inject: Injection, error: type[BaseException]
) -> None:
    engine = make_engine()
    read_all(engine, "other", make_ids(3 * GRID, 8))
    held = engine.stats().bytes
    mapped = OutOfRoomError if error is torch.OutOfMemoryError else error
    with inject(error("injected")), pytest.raises(mapped):
        bring_back(engine, "s", snapshot, KNOWN)
    assert (engine.state_stats("s"), engine.stats().bytes) == (None, held)
    assert_all_is_counted(engine)
    assert bring_back(engine, "s", snapshot, KNOWN) == 20 * GRID


@pytest.mark.parametrize("error", [SnapshotError, RuntimeError])
def test_a_piece_that_fails_ends_the_restore_by_itself(
    snapshot: Snapshot, error: type[Exception]
) -> None:
    engine = make_engine()
    restore = engine.begin_restore("s", snapshot.manifest, snapshot.head, KNOWN)
    first, second = restore.pieces
    restore.put(first, snapshot.pieces[first.name])
    with (
        patch("shadow_reader.shadow.restore.from_host", side_effect=error("injected")),
        pytest.raises(error, match="injected"),
    ):
        restore.put(second, snapshot.pieces[second.name])
    assert (restore.pieces, engine.stats().bytes) == ((), 0)
    with pytest.raises(AssertionError, match="the restore is over"):
        restore.finish()


@pytest.mark.parametrize("error", [SnapshotError, RuntimeError])
def test_a_finish_that_fails_ends_the_restore_by_itself(
    snapshot: Snapshot, error: type[Exception]
) -> None:
    engine = make_engine()
    restore = engine.begin_restore("s", snapshot.manifest, snapshot.head, KNOWN)
    put_all(restore, snapshot)
    with (
        patch("shadow_reader.shadow.restore.chain", side_effect=error("injected")),
        pytest.raises(error, match="injected"),
    ):
        restore.finish()
    assert (engine.state_stats("s"), engine.stats().bytes) == (None, 0)


@pytest.mark.parametrize("puts", [0, 1, 2])
def test_an_aborted_restore_holds_nothing(snapshot: Snapshot, puts: int) -> None:
    engine = make_engine()
    restore = engine.begin_restore("s", snapshot.manifest, snapshot.head, KNOWN)
    for piece in restore.pieces[:puts]:
        restore.put(piece, snapshot.pieces[piece.name])
    restore.abort()
    restore.abort()
    assert (engine.state_stats("s"), engine.stats().bytes) == (None, 0)
    with pytest.raises(AssertionError):
        restore.finish()


def test_an_unfinished_restore_is_not_finished(snapshot: Snapshot) -> None:
    engine = make_engine()
    restore = engine.begin_restore("s", snapshot.manifest, snapshot.head, KNOWN)
    with pytest.raises(AssertionError, match="2 pieces were not put"):
        restore.finish()
    restore.abort()
    assert engine.stats().bytes == 0

"""Every call to the disk fails once, in spills, restores, erasures and stops: nothing is lost.

The store's own laws under such faults are in ``tests/store/test_snapshot_faults.py``; here they
happen under a reader whose memory is too small for its sessions.
"""

from __future__ import annotations

import errno
import itertools
import logging
from pathlib import Path

import pytest

from shadow_reader.errors import NotFoundError, SnapshotError
from shadow_reader.events import types as t
from tests.fakes import run_virtual
from tests.faults.moving import MovingRig, a_rig, crowd
from tests.shadow.rig import quiet

NAMES = ("a", "b", "c")


async def life(rig: MovingRig) -> None:
    """Read, spill, restore, erase, come back."""
    await crowd(rig)
    for session in ("a", "b"):
        await rig.answer(session)
    try:
        await rig.erase("b")
    except SnapshotError:
        await rig.store_erased("b")
    await crowd(rig, ("b",))
    await rig.answer("a")


@pytest.mark.parametrize(
    ("stride", "after", "error"),
    [
        (32, False, errno.ENOSPC),
        (32, True, errno.EIO),
        *(
            pytest.param(1, after, error, marks=pytest.mark.slow)
            for after in (False, True)
            for error in (errno.ENOSPC, errno.EIO)
        ),
    ],
)
def test_a_disk_that_fails_at_any_step(
    tmp_path: Path, stride: int, after: bool, error: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)

    async def main(step: int) -> bool:
        root = tmp_path / str(step)
        rig = a_rig(root)
        rig.disk.fail_at, rig.disk.after, rig.disk.error = step, after, error
        rig.start()
        await life(rig)
        for session in NAMES:
            await rig.answer(session)
        rig.store.sweep()
        rig.assert_sound()
        await rig.stop()
        came = len(rig.disk.steps) > step
        again = a_rig(root, rig.journal).start()
        for session in NAMES:
            await again.answer(session)
        again.assert_sound()
        await again.stop()
        for name in NAMES:
            await again.check_moves(name, gaps=True)
        return came

    steps = itertools.count(0, stride)
    came = list(itertools.takewhile(lambda step: run_virtual(main(step)), steps))
    assert came[-1] > 40


@pytest.mark.parametrize("kind", ["create", "write", "fsync", "rename", "fsync_folder"])
def test_a_disk_that_takes_nothing_makes_sessions_be_read_again(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Then each state that leaves memory is dropped, and the journal says so."""
    caplog.set_level(logging.CRITICAL)

    async def main() -> None:
        rig = a_rig(tmp_path)
        rig.disk.kinds, rig.disk.error = frozenset({kind}), errno.ENOSPC
        rig.start()
        await crowd(rig)
        for session in (*NAMES, *NAMES):
            await rig.answer(session)
        drops = [drop for name in NAMES for drop in await rig.events(name, t.Dropped)]
        assert len(drops) >= 4
        assert {drop.reason for drop in drops} == {"cap"}
        assert not [s for name in NAMES for s in await rig.events(name, t.Spill)]
        rig.disk.kinds = frozenset()  # there is room again
        await rig.answer("a")
        await rig.answer("b")
        await quiet(30)
        assert [s for name in NAMES for s in await rig.events(name, t.Spill)]
        await rig.stop()
        for name in NAMES:
            await rig.check_moves(name)

    run_virtual(main())


def test_a_disk_cap_too_small_for_one_session_is_no_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)

    async def main() -> None:
        rig = a_rig(tmp_path, disk_bytes=1500).start()
        await crowd(rig)
        for session in NAMES:
            await rig.answer(session)
        assert not rig.snapshots()
        rig.assert_sound()
        await rig.stop()

    run_virtual(main())


def test_an_erasure_that_the_disk_refuses_is_made_good_when_it_is_said_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The journal has forgotten the session by then; also when the server was killed between."""
    caplog.set_level(logging.CRITICAL)

    async def main() -> None:
        rig = a_rig(tmp_path).start()
        await crowd(rig)
        assert rig.snapshots() == ["a"]
        rig.disk.kinds = frozenset({"unlink"})
        with pytest.raises(SnapshotError):
            await rig.erase("a")
        await rig.stop()
        again = a_rig(tmp_path, rig.journal).start()
        assert again.store.find("a") is not None
        with pytest.raises(NotFoundError):
            await again.erase("a")
        assert again.store.find("a") is None
        await quiet(30)
        again.assert_sound()
        await again.stop()

    run_virtual(main())

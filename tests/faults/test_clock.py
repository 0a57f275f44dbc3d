"""The wall clock jumps, by seconds or months, either way: durations do not notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from shadow_reader.events import types as t
from tests.fake_journal import all_entries
from tests.fakes import run_virtual
from tests.faults.moving import MovingRig, a_rig, crowd, prompt_of
from tests.shadow.rig import quiet

NAMES = ("a", "b", "c")
JUMPS = (-1e7, -200_000.0, -3.0, 3.0, 200_000.0, 1e7)


async def check_times(rig: MovingRig) -> None:
    for entry in await all_entries(rig.journal):
        match entry.event:
            case t.Read(ms=ms) | t.Spill(ms=ms) | t.Restore(ms=ms) | t.Answer(lag_ms=ms):
                assert 0 <= ms < 600_000, entry
            case _:
                pass


@pytest.mark.parametrize("jump", JUMPS)
def test_a_jump_at_any_moment_harms_nothing(tmp_path: Path, jump: float) -> None:
    async def main(delay: float) -> None:
        root = tmp_path / str(delay)
        rig = a_rig(root).start()
        await crowd(rig, ("a", "b"))
        await rig.whole_turn("c", prompt_of("c", 5), "c1")
        await quiet(delay)
        rig.clock.jumped += jump
        await quiet(60)
        for session in NAMES:
            await rig.answer(session)
        rig.store.sweep()
        rig.assert_sound()
        await rig.stop()
        again = a_rig(root, rig.journal)
        again.clock.jumped = -jump
        again.start()
        for session in NAMES:
            await again.answer(session)
        again.assert_sound()
        await again.stop()
        await check_times(again)
        for session in NAMES:
            await again.check_moves(session, gaps=True)

    run_virtual(main(0.15))


def test_a_clock_that_is_set_back_keeps_snapshots_and_drops_none_too_late(tmp_path: Path) -> None:
    """A snapshot from the future is as old as this process has seen it."""

    async def main() -> None:
        rig = a_rig(tmp_path).start()
        await crowd(rig)
        rig.clock.jumped -= 1e7
        rig.store.sweep()
        assert rig.snapshots() == ["a"]
        await quiet(rig.ttl_s + 3600)
        rig.store.sweep()
        assert rig.snapshots() == []
        await rig.stop()

    run_virtual(main())

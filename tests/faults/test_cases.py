"""What went wrong for people who run such systems, with the reader, the mover and a folder."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from bench.faults_world import folder_of
from shadow_reader.events import types as t
from shadow_reader.events.view import MAX_CHECKPOINTS
from tests.fake_journal import all_entries
from tests.fakes import GRID, FakeEngine, run_virtual
from tests.faults.moving import a_rig, crowd, prompt_of
from tests.shadow.rig import quiet


def test_case_19_a_restore_after_a_kill_brings_the_checkpoints_back(tmp_path: Path) -> None:
    """Spill, kill, restore, then diverge below the last prompt's end."""

    async def main() -> None:
        rig = a_rig(tmp_path, cap=40).start()
        for turn, chunks in enumerate((3, 6, 9)):
            await rig.whole_turn("a", prompt_of("a", chunks), f"a{turn}", [1, 2])
            await quiet(30)
        await rig.stop()

        killed = a_rig(tmp_path, rig.journal, cap=40).start()
        await killed.answer("a")
        await killed.kill_mover()  # and nothing of this process ever runs again
        killed.reader.stop()
        killed.store.close()

        again = a_rig(tmp_path, rig.journal, cap=40).start()
        await again.answer("a")
        restored = await again.events("a", t.Restore)
        assert [r.position for r in restored] == [9 * GRID, 9 * GRID]
        known = prompt_of("a", 7)[:-3]
        await again.whole_turn("a", [*known, 999, 998, 997], "a9")
        await quiet(30)
        (rewind,) = await again.events("a", t.Rewind)
        assert (rewind.cut, rewind.to) == (7 * GRID - 3, 6 * GRID)
        again.assert_exact("a")
        await again.stop()

    run_virtual(main())


def test_case_29_four_sessions_of_six_checkpoints_never_pass_the_cap(tmp_path: Path) -> None:
    async def main() -> None:
        rig = a_rig(tmp_path, cap=36).start()
        for turn in range(MAX_CHECKPOINTS + 2):
            for session in "abcd":
                prompt = prompt_of(session, 3 + turn)
                await rig.whole_turn(session, prompt, f"{session}{turn}")
                await quiet(10)
                assert rig.engine.used <= rig.engine.cap
        for session in "abcd":
            await rig.answer(session)
        assert 30 <= rig.engine.peak <= rig.engine.cap
        rig.assert_sound()
        await rig.stop()

    run_virtual(main())


def test_case_30_the_disk_stays_under_its_cap_and_strays_go(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Three times the cap is spilled; the file system itself measures at every step."""
    caplog.set_level(logging.CRITICAL)
    names = [f"session {number}" for number in range(9)]

    async def main() -> None:
        rig = a_rig(tmp_path, disk_bytes=9_000).start()
        await crowd(rig, names)
        spilled = [s for name in names for s in await rig.events(name, t.Spill)]
        assert sum(spill.written for spill in spilled) > 0
        assert 0 < rig.disk.most <= 9_000
        assert 0 < len(rig.snapshots()) < len(names) - 2
        await rig.stop()
        folder = folder_of(tmp_path, names[-1])
        (folder / ".head.safetensors.7.tmp").write_bytes(bytes(50))
        (folder / "99-100-stray.safetensors").write_bytes(bytes(50))
        lost = tmp_path / ("0" * 32)
        lost.mkdir()
        (lost / ".1-2-x.safetensors.7.tmp").write_bytes(bytes(50))

        again = a_rig(tmp_path, rig.journal, disk_bytes=9_000).start()
        again.assert_sound()
        assert not lost.exists()
        assert not list(folder.glob("*stray*"))
        for name in names:
            await again.answer(name)
        assert again.disk.most <= 9_000
        await again.stop()

    run_virtual(main())


def test_case_32_a_spill_while_chunks_are_read_is_the_committed_state(tmp_path: Path) -> None:
    """The session goes on growing while it is spilled, at every moment of that."""

    async def main(delay: int) -> bool:
        root = tmp_path / str(delay)
        rig = a_rig(root, cap=20).start()
        await crowd(rig, ("a", "b"))
        await rig.whole_turn("c", prompt_of("c", 9), "c1")
        await quiet(delay * 0.05)
        moving = rig.reader.roster.notes("c").moving != ""
        await rig.whole_turn("a", prompt_of("a", 7), "a2", [5, 5])
        await quiet(60)
        for name in "abc":
            manifest = rig.store.find(name)
            if manifest is not None:
                known = rig.view(name).known.take(manifest.position)
                assert manifest.digest == FakeEngine.hash_of(known)
        rig.assert_sound()
        for name in "abc":
            await rig.answer(name)
            await rig.check_moves(name)
        await rig.stop()
        return moving

    assert sum(run_virtual(main(delay)) for delay in range(0, 40, 5)) > 1


def test_a_lost_commit_during_moves_makes_no_state_inexact(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The journal does not take what the mover did; what it does next is right all the same."""
    caplog.set_level(logging.CRITICAL)

    async def main() -> None:
        rig = a_rig(tmp_path).start()
        await crowd(rig, ("a", "b"))
        rig.journal.fails = lambda group: any(
            isinstance(draft.event, t.Spill | t.Restore | t.Dropped)
            for submission in group
            for draft in getattr(submission, "drafts", ())
        )
        await crowd(rig, ("c",))
        for session in ("a", "b", "c"):
            await rig.answer(session)
        assert rig.journal.failed >= 3
        rig.journal.fails = lambda _group: False
        for session in ("a", "b", "c"):
            await rig.answer(session)
            await rig.check_moves(session, gaps=True)
        rig.assert_sound()
        assert [e for e in await all_entries(rig.journal) if isinstance(e.event, t.Restore)]
        await rig.stop()

    run_virtual(main())

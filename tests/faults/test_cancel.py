"""Cancelled at every await: a spill, a restore, an erasure, a question. Nothing is left of it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from shadow_reader.errors import NotFoundError
from shadow_reader.events import types as t
from tests.fakes import run_virtual
from tests.faults.moving import STRIDES, CancelledAt, a_rig, crowd, prompt_of
from tests.shadow.rig import quiet


def test_a_crowd_is_spilled_and_restored_exact(tmp_path: Path) -> None:
    async def main() -> None:
        rig = a_rig(tmp_path).start()
        await crowd(rig)
        for session in ("a", "b", "c", "a"):
            await rig.answer(session)
        rig.assert_sound()
        spills = [s for name in "abc" for s in await rig.events(name, t.Spill)]
        restores = [r for name in "abc" for r in await rig.events(name, t.Restore)]
        assert len(spills) >= 3
        assert len(restores) >= 2
        assert all(restore.refused is None for restore in restores)
        await rig.stop()
        for name in "abc":
            await rig.check_moves(name)

    run_virtual(main())


@STRIDES
def test_the_mover_cancelled_at_every_await_loses_nothing(tmp_path: Path, stride: int) -> None:
    """Also a stop that comes then spills all, and the next start is exact."""

    async def main(number: int) -> bool:
        root = tmp_path / str(number)
        cut: CancelledAt[None] | None = None

        async def drive(run: Coroutine[Any, Any, None]) -> None:
            nonlocal cut
            cut = CancelledAt(run, number)
            await cut

        rig = a_rig(root).start(drive)
        await crowd(rig)
        for session in ("a", "b"):
            asked = rig.ask(session, timeout_s=20.0)  # nobody moves states any more: may time out
            await asyncio.wait([asked])
            asked.exception()
        assert cut is not None
        await rig.stop()
        assert all(pin.released for pin in rig.pins), number
        assert all(restore.units == 0 for restore in rig.engine.restores), number
        for name in "abc":
            rig.assert_exact(name, fresh=False)
        again = a_rig(root, rig.journal).start()
        for session in ("a", "b", "c"):
            await again.answer(session)
        again.assert_sound()
        await again.stop()
        for name in "abc":
            await again.check_moves(name, gaps=True)
        return cut.reached

    numbers = itertools.count(0, stride)
    reached = list(itertools.takewhile(lambda number: run_virtual(main(number)), numbers))
    assert reached[-1] > 50


@STRIDES
@pytest.mark.parametrize("what", ["spilled", "restored"])
def test_a_session_erased_at_any_moment_of_its_move_leaves_nothing(
    tmp_path: Path, what: str, stride: int
) -> None:
    """Law 4 of the mover: once it is erased, no snapshot of it is left, and none is begun."""

    async def main(delay: int) -> bool:
        rig = a_rig(tmp_path / str(delay)).start()
        await crowd(rig, ("a", "b"))
        if what == "spilled":  # the third session pushes the first one out
            await rig.whole_turn("c", prompt_of("c", 5), "c1")
        else:
            await crowd(rig, ("c",))
            assert "a" in rig.snapshots()
            asked = rig.ask("a", timeout_s=100.0)
        began = rig.clock.monotonic()
        await asyncio.sleep(delay * 0.01)
        moving = rig.reader.roster.notes("c" if what == "spilled" else "a").moving
        await rig.erase("a")
        if what == "restored":
            with suppress(NotFoundError):
                await asked
        assert rig.store.find("a") is None, f"erased {rig.clock.monotonic() - began:.2f} s on"
        await quiet(60)
        assert rig.store.find("a") is None, f"a snapshot came after the erasure, {delay}"
        assert rig.engine.state_stats("a") is None
        rig.assert_sound()
        for session in ("b", "c"):
            await rig.answer(session)
        await rig.stop()
        return bool(moving)

    moved = [run_virtual(main(delay)) for delay in range(3, 264, stride)]
    assert sum(moved) > 10 / stride
    assert not moved[-1]


def test_an_erasure_cancelled_at_every_await_goes_through(tmp_path: Path) -> None:
    async def main(number: int) -> bool:
        rig = a_rig(tmp_path / str(number)).start()
        await crowd(rig)
        assert "a" in rig.snapshots()
        cut = CancelledAt(rig.erasures.erase("a"), number)

        async def erase() -> None:
            await cut

        task = asyncio.create_task(erase())
        await asyncio.wait([task])
        await quiet(60)
        assert task.cancelled() == cut.reached
        assert rig.store.find("a") is None
        assert [type(e) for e in await rig.events("a", object)] == [t.SessionErased]
        rig.assert_sound()
        await rig.stop()
        return cut.reached

    numbers = itertools.takewhile(lambda number: run_virtual(main(number)), itertools.count())
    assert sum(1 for _ in numbers) >= 1


@STRIDES
def test_a_question_cancelled_at_any_moment_of_a_restore_harms_nothing(
    tmp_path: Path, stride: int
) -> None:
    async def main(delay: int) -> None:
        rig = a_rig(tmp_path / str(delay)).start()
        await crowd(rig)
        asked = rig.ask("a", timeout_s=100.0)
        await asyncio.sleep(delay * 0.02)
        asked.cancel()
        await asyncio.wait([asked])
        await quiet(60)
        rig.assert_sound()
        for session in ("a", "b", "c"):
            await rig.answer(session)
        ends = await rig.events("a", t.Answer, t.QuestionEnded)
        assert len(ends) == len(await rig.events("a", t.Question))
        await rig.stop()

    for delay in range(0, 60, stride):
        run_virtual(main(delay))


@pytest.mark.parametrize("what", ["spilled", "restored"])
def test_an_erasure_does_not_wait_for_a_turn_to_end(tmp_path: Path, what: str) -> None:
    """A move waits while the foreground has the device; whoever erases its session does not."""

    async def main(delay: int) -> bool:
        rig = a_rig(tmp_path / str(delay)).start()
        await crowd(rig, ("a", "b"))
        if what == "spilled":
            await rig.whole_turn("c", prompt_of("c", 5), "c1")
        else:
            await crowd(rig, ("c",))
            asked = rig.ask("a", timeout_s=100.0)
        await asyncio.sleep(delay * 0.05)
        moving = rig.reader.roster.notes("c" if what == "spilled" else "a").moving
        await rig.prompt("other", [1, 2, 3], "o1")  # this turn runs on
        began = rig.clock.monotonic()
        await rig.erase("a")
        assert rig.clock.monotonic() - began < 1.0
        if what == "restored":
            with suppress(NotFoundError):
                await asked
        assert rig.store.find("a") is None
        await rig.end("other", "o1")
        await quiet(60)
        rig.assert_sound()
        assert rig.store.find("a") is None
        for session in ("b", "c"):
            await rig.answer(session)
        await rig.stop()
        return bool(moving)

    assert sum(run_virtual(main(delay)) for delay in range(0, 24, 3)) > 1

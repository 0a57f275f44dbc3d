"""The virtual event loop: exact, and never early."""

from __future__ import annotations

import asyncio

import pytest

from shadow_reader.replay.simulation.virtual_time import run_virtual


def test_time_goes_on_to_each_timer_exactly() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        seen = []
        for delay_s in (0.25, 0.0, 1e7, 0.5, 1e-12, 300_000.0):
            await asyncio.sleep(delay_s)
            seen.append(loop.time())
        return seen

    assert run_virtual(main()) == [0.25, 0.25, 1e7 + 0.25, 1e7 + 0.75, 1e7 + 0.75, 1e7 + 300_000.75]


def test_a_timer_never_runs_before_its_time() -> None:
    """Whoever waits for a moment and then looks at the clock would wait again, and for ever."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(5.0)
        at_s = loop.time() + 1e-10
        woken = loop.create_future()
        loop.call_at(at_s, woken.set_result, None)
        await woken
        assert loop.time() >= at_s

    run_virtual(main())


def test_waiting_for_what_never_comes_is_an_error() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(RuntimeError, match="nothing will ever wake it"):
        run_virtual(main())

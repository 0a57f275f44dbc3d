"""The device thread: one job at a time, in order, never left half-watched, always closed."""

from __future__ import annotations

import asyncio
import threading

import pytest

from shadow_reader.errors import ShutDownError
from shadow_reader.shadow.job_thread import JobThread
from tests.fakes import steps

PATIENCE_S = 20.0


class Gated:
    """A job that says it has begun, and ends when it is let."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.ended = False

    def __call__(self) -> str:
        self.begun.set()
        assert self.go_on.wait(PATIENCE_S)
        self.ended = True
        return threading.current_thread().name

    async def has_begun(self) -> None:
        assert await asyncio.to_thread(self.begun.wait, PATIENCE_S)


def device_threads() -> int:
    return sum(thread.name.startswith("shadow-device") for thread in threading.enumerate())


async def test_jobs_run_one_at_a_time_in_order_on_one_thread_that_is_not_ours() -> None:
    device, running, order = JobThread(), list[int](), list[int]()
    names: set[str] = set()

    def job(number: int) -> int:
        running.append(number)
        assert running == [number], "two at once"
        names.add(threading.current_thread().name)
        order.append(number)
        running.remove(number)
        return 2 * number

    results = await asyncio.gather(*(device.run(job, number) for number in range(200)))
    assert results == [2 * number for number in range(200)]
    assert order == list(range(200))
    assert len(names) == 1
    assert threading.current_thread().name not in names
    await device.close()


async def test_what_a_job_raises_comes_to_its_caller_and_the_next_goes_on() -> None:
    device = JobThread()

    def fail(kind: type[BaseException]) -> None:
        raise kind("from the job")

    for kind in (ValueError, KeyError, MemoryError):
        with pytest.raises(kind):
            await device.run(fail, kind)
    assert await device.run(lambda: 1) == 1
    await device.close()


async def test_a_cancelled_caller_waits_for_its_running_job() -> None:
    device, gated = JobThread(), Gated()
    caller = asyncio.create_task(device.run(gated))
    await gated.has_begun()
    for _ in range(3):
        caller.cancel()
        await steps()
    assert not caller.done(), "it must not leave before its job"
    gated.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert gated.ended
    await device.close()


async def test_a_job_that_fails_after_its_caller_was_cancelled_stays_quiet() -> None:
    device, gated = JobThread(), Gated()

    def fail() -> None:
        gated()
        raise RuntimeError("nobody is there to hear")

    unseen: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, said: unseen.append(said))
    caller = asyncio.create_task(device.run(fail))
    await gated.has_begun()
    caller.cancel()
    await steps()
    gated.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await device.close()
    assert not unseen


async def test_a_cancelled_caller_s_job_that_has_not_begun_never_runs() -> None:
    device, gated, ran = JobThread(), Gated(), list[str]()
    first = asyncio.create_task(device.run(gated))
    await gated.has_begun()
    second = asyncio.create_task(device.run(ran.append, "second"))
    third = asyncio.create_task(device.run(ran.append, "third"))
    await steps()
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second  # at once, although the first still runs
    gated.go_on.set()
    await asyncio.gather(first, third)
    assert ran == ["third"]
    await device.close()


async def test_a_caller_cancelled_when_its_job_is_done_already_leaves_no_trace() -> None:
    device = JobThread()
    for _ in range(50):
        caller = asyncio.create_task(device.run(lambda: 1))
        await steps(3)
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
    assert await device.run(lambda: 2) == 2
    await device.close()


async def test_close_finishes_what_was_given_and_takes_nothing_more() -> None:
    before = device_threads()
    device, gated, ran = JobThread(), Gated(), list[str]()
    first = asyncio.create_task(device.run(gated))
    await gated.has_begun()
    second = asyncio.create_task(device.run(ran.append, "second"))
    await steps()
    closing = [asyncio.create_task(device.close()) for _ in range(2)]
    await steps()
    assert not any(task.done() for task in closing), "neither close may return before the end"
    with pytest.raises(ShutDownError):
        await device.run(ran.append, "too late")
    gated.go_on.set()
    await asyncio.gather(*closing)
    assert (await first).startswith("shadow-device")
    await second
    assert ran == ["second"]
    assert device_threads() == before
    await device.close()


async def test_close_before_anything_ran_and_in_a_row_leaves_no_thread() -> None:
    before = threading.active_count()
    for _ in range(20):
        device = JobThread()
        await device.close()
        await device.close()
    assert threading.active_count() == before


async def test_a_cancelled_close_goes_on_closing() -> None:
    before = device_threads()
    device, gated = JobThread(), Gated()
    job = asyncio.create_task(device.run(gated))
    await gated.has_begun()
    closing = asyncio.create_task(device.close())
    await steps()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    with pytest.raises(ShutDownError):
        await device.run(lambda: 1)
    gated.go_on.set()
    await job
    await device.close()
    assert device_threads() == before

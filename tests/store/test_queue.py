"""The queue by itself: groups, their bounds, and a loop that ends too early."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from shadow_reader.errors import JournalError, ShutDownError
from shadow_reader.store.queue import GROUP_BYTES, GROUP_EVENTS, Promise, WriteQueue


class Commits:
    """Records the groups it is given; waits for its gate, and fails when told to."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: BaseException | None = None

    async def __call__(self, group: Sequence[int]) -> Sequence[str]:
        await self.gate.wait()
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        self.groups.append(list(group))
        return [f"done {item}" for item in group]


def queue_of(commits: Commits, limit: int = 100) -> WriteQueue[int, str]:
    return WriteQueue(commits, limit=limit, limit_bytes=1 << 30)


async def test_what_comes_while_a_group_is_written_makes_the_next_group() -> None:
    commits = Commits()
    queue = queue_of(commits)
    commits.gate.clear()
    promises = [queue.submit(0, events=1, size=1)]
    await asyncio.sleep(0)
    promises += [queue.submit(n, events=1, size=1) for n in range(1, 10)]
    assert (queue.pending, queue.pending_bytes) == (10, 10)
    commits.gate.set()
    assert [await promise for promise in promises] == [f"done {n}" for n in range(10)]
    assert commits.groups == [[0], list(range(1, 10))]
    assert (queue.pending, queue.pending_bytes) == (0, 0)


async def test_a_group_is_bounded_in_events_and_bytes_but_takes_any_one_submission() -> None:
    commits = Commits()
    queue = queue_of(commits)
    half_events, half_bytes = GROUP_EVENTS // 2, GROUP_BYTES // 2
    promises = [queue.submit(n, events=half_events, size=1) for n in range(5)]
    promises += [queue.submit(n, events=1, size=half_bytes) for n in range(5, 9)]
    promises += [queue.submit(9, events=3 * GROUP_EVENTS, size=3 * GROUP_BYTES)]
    promises += [queue.submit(10, events=1, size=1)]
    for promise in promises:
        await promise
    assert commits.groups == [[0, 1], [2, 3], [4, 5, 6], [7, 8], [9], [10]]


async def test_room_is_given_in_turn_and_not_a_place_too_many() -> None:
    commits = Commits()
    queue = queue_of(commits, limit=3)
    commits.gate.clear()
    order: list[int] = []
    most = 0

    async def feed(number: int) -> None:
        nonlocal most
        await queue.room()
        promise = queue.submit(number, events=1, size=1)
        order.append(number)
        most = max(most, queue.pending)
        await promise

    async with asyncio.TaskGroup() as group:
        for number in range(9):
            group.create_task(feed(number))
        await asyncio.sleep(0)
        assert order == [0, 1, 2]
        # somebody new, as soon as there is room again, comes behind those who wait
        promise = queue.submit(100, events=1, size=1)
        promise.add_done_callback(lambda _: group.create_task(feed(9)))
        commits.gate.set()
        await promise
        commits.gate.clear()
        await _idle()
        assert order == [0, 1, 2, 3, 4, 5]
        commits.gate.set()
    assert order == list(range(10))
    assert most == 3


async def _idle() -> None:
    """Let everything run that can."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_errors_are_told_apart_and_one_each() -> None:
    commits = Commits()
    queue = queue_of(commits)
    commits.error = JournalError("no luck", path="x")
    promises = [queue.submit(n, events=1, size=1) for n in range(3)]
    errors = await asyncio.gather(*promises, return_exceptions=True)
    assert len({id(error) for error in errors}) == 3
    for error in errors:
        assert isinstance(error, JournalError)
        assert (error.message, error.details) == ("no luck", {"path": "x"})


async def test_what_waits_behind_a_failure_is_never_written() -> None:
    commits = Commits()
    queue = queue_of(commits)
    commits.gate.clear()
    promises = [queue.submit(0, events=1, size=1)]
    await asyncio.sleep(0)
    promises += [queue.submit(n, events=1, size=1) for n in (1, 2)]
    commits.error = JournalError("once")
    commits.gate.set()
    for promise in promises:
        with pytest.raises(JournalError):
            await promise
    assert await queue.submit(3, events=1, size=1) == "done 3"
    assert commits.groups == [[3]]


async def test_a_cancelled_waiter_leaves_at_once_and_alone() -> None:
    commits = Commits()
    queue = queue_of(commits)
    commits.gate.clear()
    promise = queue.submit(0, events=1, size=1)

    async def wait() -> str:
        return await promise

    waiters = [asyncio.create_task(wait()) for _ in range(2)]
    await asyncio.sleep(0)
    waiters[0].cancel()
    await asyncio.wait({waiters[0]}, timeout=5)
    assert waiters[0].cancelled()
    assert not promise.done()
    commits.gate.set()
    assert await waiters[1] == await promise == "done 0"


async def test_a_bug_in_the_writer_fails_the_promises_and_is_raised() -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, facts: complaints.append(facts["exception"])
    )
    commits = Commits()
    queue = queue_of(commits)
    commits.error = ZeroDivisionError("a bug")
    promise = queue.submit(0, events=1, size=1)
    with pytest.raises(JournalError, match="ZeroDivisionError"):
        await promise
    assert await queue.submit(1, events=1, size=1) == "done 1"
    del promise
    await queue.close()
    assert complaints == [] or isinstance(complaints[0], ZeroDivisionError)


def test_a_loop_that_ends_leaves_no_promise_unkept_and_no_writer() -> None:
    promises: list[Promise[str]] = []
    queues: list[WriteQueue[int, str]] = []

    async def main() -> None:
        commits = Commits()
        commits.gate.clear()
        queues.append(queue_of(commits))
        promises.extend(queues[0].submit(n, events=1, size=1) for n in range(2))
        await asyncio.sleep(0)
        promises.append(queues[0].submit(2, events=1, size=1))

    asyncio.run(main())
    assert [promise.cancelled() for promise in promises] == [True] * 3

    async def later() -> None:
        with pytest.raises(ShutDownError):
            queues[0].submit(3, events=1, size=1)
        await queues[0].close()

    asyncio.run(later())


async def test_a_promise_can_only_be_kept_or_broken() -> None:
    promise: Promise[str] = Promise(loop=asyncio.get_running_loop())
    assert not promise.cancel()
    gathered = asyncio.gather(promise, return_exceptions=True)
    assert not gathered.cancel()
    promise.set_result("kept")
    assert await promise == "kept"
    assert await asyncio.ensure_future(promise) == "kept"
    assert list(await gathered) == ["kept"]

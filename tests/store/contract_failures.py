"""What every journal must do when commits fail, the queue is full or waiters go away."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from shadow_reader.errors import JournalError
from shadow_reader.events.journal import Journal
from tests.store.contract_house import Contract, House
from tests.store.drafts import entry, erased, everything, opened, output, seqs


class FailureContract(Contract):
    """Laws 1, 3, 4 and 5."""

    # -- failure (laws 1 and 3) ---------------------------------------------------------------

    async def test_a_failed_commit_fails_all_that_waits_listeners_first(
        self, house: House, journal: Journal
    ) -> None:
        await journal.submit([output("a", 0)])
        seen: list[list[bool]] = []
        futures: list[Any] = []
        journal.on_failure(lambda: seen.append([future.done() for future in futures]))
        journal.on_failure(lambda: seen.append([future.done() for future in futures]))
        await house.break_commits(journal)
        futures += [journal.submit([output("a", n), output("b", n)]) for n in range(1, 6)]
        futures.append(journal.erase(erased("a")))
        for future in futures:
            with pytest.raises(JournalError):
                await future
        assert seen == [[False] * 6] * 2
        assert await everything(journal) == [entry(output("a", 0), 1)]
        stats = journal.stats()
        assert (stats.pending, stats.pending_bytes, stats.last_seq, stats.events) == (0, 0, 1, 1)

    async def test_after_a_failure_the_journal_goes_on(
        self, house: House, journal: Journal
    ) -> None:
        await journal.submit([output("a", 0)])
        await house.break_commits(journal)
        for _ in range(3):
            with pytest.raises(JournalError):
                await journal.submit([opened("new"), output("new", 0, turn="new")])
        await house.mend(journal)
        assert list(await journal.submit([output("new", 0, turn="new")])) == [2]
        assert await everything(journal) == [
            entry(output("a", 0), 1),
            entry(output("new", 0, turn="new"), 2),
        ]
        assert [row.session for row in await journal.sessions()] == ["a", "new"]

    async def test_what_a_listener_submits_is_not_part_of_the_failure(
        self, house: House, journal: Journal
    ) -> None:
        again: list[Any] = []
        states: list[bool] = []

        def listener() -> None:
            states.extend(future.done() for future in again)
            if len(again) < 2:
                again.append(journal.submit([output("a", 7)]))

        await house.break_commits(journal)
        journal.on_failure(listener)
        with pytest.raises(JournalError):
            await journal.submit([output("a", 0)])
        for future in again:
            with pytest.raises(JournalError):
                await future
        assert states == [False, True, False]

    async def test_a_listener_that_raises_stops_neither_the_failing_nor_the_journal(
        self, house: House, journal: Journal
    ) -> None:
        complaints: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, facts: complaints.append(facts))
        late: list[Any] = []

        def submit_once() -> None:
            if not late:
                late.append(journal.submit([output("a", 7)]))

        def raise_once() -> None:
            if not complaints:
                raise LookupError("the listener's own bug")

        journal.on_failure(submit_once)
        journal.on_failure(raise_once)
        await house.break_commits(journal)
        for future in [journal.submit([output("a", n)]) for n in range(3)]:
            with pytest.raises(JournalError):
                await future
        with pytest.raises(JournalError):
            await asyncio.wait_for(late[0], 5)
        gc.collect()
        await asyncio.sleep(0)
        assert [type(facts["exception"]) for facts in complaints] == [LookupError]

    async def test_nobody_has_to_look_at_a_failure(self, house: House, journal: Journal) -> None:
        complaints: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, facts: complaints.append(facts))
        await house.break_commits(journal)
        journal.submit([output("a", 0)])
        journal.erase(erased("a"))
        with pytest.raises(JournalError):
            await journal.submit([output("a", 1)])
        gc.collect()
        await asyncio.sleep(0)
        assert complaints == []

    # -- room (law 4) -------------------------------------------------------------------------

    async def test_room_lets_in_one_after_the_other_and_never_many_too_many(
        self, house: House
    ) -> None:
        journal = await house.open(pending_limit=4)
        order: list[int] = []
        most = 0

        async def feed(number: int) -> None:
            nonlocal most
            await journal.room()
            future = journal.submit([output("a", number)])
            order.append(number)
            most = max(most, journal.stats().pending)
            await future

        await asyncio.gather(*(feed(number) for number in range(100)))
        assert order == list(range(100))
        assert most == 4
        assert await seqs(journal) == list(range(1, 101))
        await house.close()

    async def test_room_is_bounded_in_bytes_too(self, house: House) -> None:
        journal = await house.open(pending_bytes=10_000)
        await journal.room()
        future = journal.submit([output("a", 0, n=5000)])
        waiting = asyncio.ensure_future(journal.room())
        await asyncio.sleep(0)
        assert not waiting.done()
        assert journal.stats().pending_bytes > journal.stats().pending_bytes_limit == 10_000
        await future
        await waiting
        await house.close()

    async def test_a_cancelled_waiter_gives_its_place_to_the_next(self, house: House) -> None:
        journal = await house.open(pending_limit=1)
        future = journal.submit([output("a", 0)])
        waiting = [asyncio.ensure_future(journal.room()) for _ in range(6)]
        await asyncio.sleep(0)
        for place in (0, 3, 5):
            waiting[place].cancel()
        await future
        for place in (1, 2, 4):
            await waiting[place]
            await journal.submit([output("a", 1)])
        assert [w.cancelled() for w in waiting] == [True, False, False, True, False, True]
        await asyncio.wait_for(journal.room(), 5)
        await house.close()

    async def test_a_waiter_cancelled_as_it_is_let_in_gives_its_place_on(
        self, house: House
    ) -> None:
        journal = await house.open(pending_limit=1)
        future = journal.submit([output("a", 0)])
        first = asyncio.ensure_future(journal.room())
        second = asyncio.ensure_future(journal.room())
        future.add_done_callback(lambda _: first.cancel())  # type: ignore[attr-defined]  # a future
        await asyncio.wait({second}, timeout=5)
        assert first.cancelled()
        assert second.done()
        await house.close()

    # -- cancellation (law 5) -----------------------------------------------------------------

    async def test_cancelling_a_waiter_cancels_nothing(self, journal: Journal) -> None:
        future = journal.submit([output("a", 0)])

        async def wait() -> range:
            return await future

        tasks = [asyncio.create_task(wait()) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(done[1], asyncio.CancelledError)
        assert done[0] == done[2] == range(1, 2)
        assert await future == done[0]

    async def test_a_timeout_leaves_at_once_and_the_write_goes_on(self, journal: Journal) -> None:
        future = journal.submit([output("a", 0)])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_wait(future), 0)
        assert list(await future) == [1]


async def _wait(future: Any) -> Any:
    return await future

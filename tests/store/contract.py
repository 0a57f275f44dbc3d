"""What every journal must do. One class of tests, run for each implementation by a subclass."""

from __future__ import annotations

import asyncio
import gc
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Any

import pytest

from shadow_reader.errors import InvalidInputError, JournalError, ShutDownError
from shadow_reader.events import types as t
from shadow_reader.events.ids import Ids
from shadow_reader.events.journal import Journal, SessionRow
from tests.store.drafts import entry, erased, everything, opened, output, seqs, stopped


class House(ABC):
    """Opens journals of one kind, each empty, and makes their commits fail and work again."""

    def __init__(self) -> None:
        self.opened: list[Journal] = []

    @abstractmethod
    async def make(self, pending_limit: int, pending_bytes: int) -> Journal:
        """An empty journal."""

    @abstractmethod
    async def break_commits(self, journal: Journal) -> None:
        """From here on no commit works."""

    @abstractmethod
    async def mend(self, journal: Journal) -> None:
        """From here on commits work again."""

    async def open(self, *, pending_limit: int = 8192, pending_bytes: int = 64 << 20) -> Journal:
        """An empty journal that is closed at the end of the test."""
        journal = await self.make(pending_limit, pending_bytes)
        self.opened.append(journal)
        return journal

    async def close(self) -> None:
        """Close what was opened."""
        for journal in self.opened:
            await journal.close()


class JournalContract:
    """Tests that only use what ``Journal`` promises."""

    @pytest.fixture
    def house(self, tmp_path: Any) -> House:
        """The implementation."""
        raise NotImplementedError

    @pytest.fixture
    async def journal(self, house: House) -> AsyncIterator[Journal]:
        """An empty journal."""
        yield await house.open()
        await house.close()

    # -- order and atomicity (laws 1 and 2) ---------------------------------------------------

    async def test_entries_get_their_seq_in_the_order_of_the_submits(
        self, journal: Journal
    ) -> None:
        drafts = [opened("a"), output("a", 0), output("b", 0), stopped(), output("a", 1)]
        first = journal.submit(drafts[:3])
        second = journal.submit(drafts[3:4])
        third = journal.submit(drafts[4:])
        committed = [*await third, *await second, *await first]
        assert committed == [5, 4, 1, 2, 3]
        assert await everything(journal) == [entry(d, n + 1) for n, d in enumerate(drafts)]
        assert await first == range(1, 4)

    async def test_a_future_is_done_when_its_entries_can_be_read_and_counted(
        self, journal: Journal
    ) -> None:
        for number in range(5):
            future = journal.submit([output("a", number)])
            before = journal.stats()
            assert (before.pending, before.last_seq) == (1, number)
            assert before.pending_bytes > 0
            await future
            after = journal.stats()
            assert (after.pending, after.pending_bytes, after.last_seq) == (0, 0, number + 1)
            assert await seqs(journal) == list(range(1, number + 2))

    async def test_what_waits_is_committed_in_groups(self, journal: Journal) -> None:
        futures = [journal.submit([output("a", number)]) for number in range(50)]
        for future in futures:
            await future
        stats = journal.stats()
        assert stats.events == 50
        assert stats.commits < 5

    async def test_values_come_back_as_they_went(self, journal: Journal) -> None:
        ids = Ids.of([0, 2**32 - 1, *range(100_000)])
        names = ["'; DROP TABLE events --", "%_", "模型/ä", "x" * 200, "A", "a", "-1"]
        drafts = [
            t.Draft(1.7e9 + n / 7, name, f"{name} turn"[:200], t.Prompt(n, ids, name))
            for n, name in enumerate(names)
        ]
        await journal.submit(drafts)
        assert await everything(journal) == [entry(d, n + 1) for n, d in enumerate(drafts)]
        for number, name in enumerate(names):
            assert await seqs(journal, name) == [number + 1]
        assert await seqs(journal, "b") == []

    async def test_what_cannot_be_read_back_is_refused_alone(self, journal: Journal) -> None:
        good = journal.submit([output("a", 0)])
        for bad in (
            t.Draft(1.0, "a", "t", t.Read(0, 1, "idle", float("nan"))),
            t.Draft(float("inf"), "a", "t", t.FirstToken()),
            t.Draft(1.0, "\ud800", "t", t.FirstToken()),
            t.Draft(1.0, "a", "\ud800", t.FirstToken()),
        ):
            with pytest.raises(InvalidInputError):
                journal.submit([output("a", 1), bad])
        assert list(await good) == [1]
        assert await seqs(journal) == [1]
        assert journal.stats().pending == 0

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

    # -- erasing ------------------------------------------------------------------------------

    async def test_an_erased_session_is_one_entry(self, journal: Journal) -> None:
        await journal.submit([opened("a"), output("a", 0, n=7), opened("b"), output("a", 7, n=2)])
        await journal.submit(
            [t.Draft(1.0, "a", "t", t.Question("q", "free", 9, Ids.of([1, 2, 3]), ("x",)))]
        )
        (done,) = await journal.erase(erased("a"))
        expected = t.Entry(9.0, "a", "", t.SessionErased(event_count=4, id_count=12), 6)
        assert done == expected
        assert await everything(journal) == [entry(opened("b"), 3), expected]
        assert [e async for e in journal.entries(session="a")] == [expected]
        assert [e async for e in journal.entries(session="a", turn="t")] == []
        assert [e async for e in journal.entries(kinds=["output"])] == []
        assert [row.session for row in await journal.sessions()] == ["b"]
        assert [row.session for row in await journal.recent_sessions(limit=9)] == ["b"]

    async def test_an_erasure_keeps_its_place_among_the_submissions(self, journal: Journal) -> None:
        before = journal.submit([output("a", 0), output("b", 0)])
        erasing = journal.erase(erased("a"))
        after = journal.submit([opened("a"), output("a", 5)])
        assert list(await after) == [4, 5]
        assert [e.event for e in await erasing] == [t.SessionErased(1, 1)]
        assert list(await before) == [1, 2]
        assert await seqs(journal) == [2, 3, 4, 5]
        assert await seqs(journal, "a") == [3, 4, 5]
        rows = await journal.sessions()
        assert rows == (SessionRow("a", 5, 1.0, 3), SessionRow("b", 2, 1.0, 1))

    async def test_erasing_again_counts_the_erased_entry(self, journal: Journal) -> None:
        await journal.submit([output("a", 0)])
        await journal.erase(erased("a"))
        (again,) = await journal.erase(erased("a"))
        assert again == t.Entry(9.0, "a", "", t.SessionErased(1, 0), 3)
        (unknown,) = await journal.erase(erased("never heard of"))
        assert unknown.event == t.SessionErased(0, 0)
        assert await everything(journal) == [again, unknown]
        assert await journal.sessions() == ()

    async def test_several_sessions_go_together(self, journal: Journal) -> None:
        await journal.submit([output("a", 0, n=2), output("b", 0), output("a~branch1", 0, n=3)])
        gone = await journal.erase(erased("a"), erased("a~branch1"))
        assert [(e.seq, e.session) for e in gone] == [(4, "a"), (5, "a~branch1")]
        assert [e.event for e in gone] == [t.SessionErased(1, 2), t.SessionErased(1, 3)]
        assert await everything(journal) == [entry(output("b", 0), 2), *gone]
        assert [row.session for row in await journal.sessions()] == ["b"]
        assert journal.stats().events == 5

    async def test_a_failed_erasure_removes_nothing(self, house: House, journal: Journal) -> None:
        await journal.submit([output("a", 0), output("a", 1)])
        await house.break_commits(journal)
        with pytest.raises(JournalError):
            await journal.erase(erased("a"))
        await house.mend(journal)
        assert await seqs(journal, "a") == [1, 2]
        assert await journal.sessions() == (SessionRow("a", 2, 1.0, 2),)

    # -- reading ------------------------------------------------------------------------------

    async def test_many_pages_come_in_order_both_ways(self, journal: Journal) -> None:
        drafts = [output("ab"[n % 2], n) for n in range(1300)]
        await journal.submit(drafts)
        assert await seqs(journal) == list(range(1, 1301))
        assert await seqs(journal, "b") == list(range(2, 1301, 2))
        backwards = [e.seq async for e in journal.entries(newest_first=True, after=100)]
        assert backwards == list(range(1300, 100, -1))
        newest = [e.seq async for e in journal.entries(session="a", newest_first=True, limit=3)]
        assert newest == [1299, 1297, 1295]
        assert [e.seq async for e in journal.entries(limit=600)] == list(range(1, 601))
        assert [e.seq async for e in journal.entries(limit=0)] == []
        assert [e.seq async for e in journal.entries(kinds=[])] == []

    async def test_a_reader_sees_up_to_the_newest_entry_of_its_first_page(
        self, journal: Journal
    ) -> None:
        await journal.submit([output("a", n) for n in range(600)])
        seen: list[int] = []
        async for e in journal.entries():
            if not seen:
                await journal.submit([output("a", n) for n in range(600)])
            seen.append(e.seq)
        assert seen == list(range(1, 601))

    async def test_a_reader_may_stop_early(self, journal: Journal) -> None:
        await journal.submit([output("a", n) for n in range(1300)])
        for stop in (1, 512, 513):
            reading = journal.entries()
            seen = []
            async for e in reading:
                seen.append(e.seq)
                if len(seen) == stop:
                    break
            assert seen == list(range(1, stop + 1))
            await reading.aclose()  # type: ignore[attr-defined]  # a generator

    async def test_sessions_come_by_name_or_newest_first(self, journal: Journal) -> None:
        names = ["b", "a", "ä", "B", "模", "a b"]
        await journal.submit([opened(name, at=n) for n, name in enumerate(names)])
        await journal.submit([output("a", 0, at=9.5), stopped()])
        rows = await journal.sessions()
        assert [row.session for row in rows] == sorted(names)
        assert rows[1] == SessionRow("a", 7, 9.5, 2)
        paged: list[SessionRow] = []
        page = await journal.sessions(limit=2)
        while page:
            paged += page
            page = await journal.sessions(after=page[-1].session, limit=2)
        assert tuple(paged) == rows
        recent = await journal.recent_sessions(limit=3)
        assert [row.session for row in recent] == ["a", "a b", "模"]

    # -- closing ------------------------------------------------------------------------------

    async def test_closing_commits_what_is_queued_and_refuses_the_rest(self, house: House) -> None:
        journal = await house.open(pending_limit=1)
        futures = [journal.submit([output("a", n)]) for n in range(5)]
        erasing = journal.erase(erased("b"))
        waiting = [asyncio.ensure_future(journal.room()) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.gather(journal.close(), journal.close())
        await journal.close()
        assert [(await future)[0] for future in futures] == [1, 2, 3, 4, 5]
        assert [e.seq for e in await erasing] == [6]
        for waiter in waiting:
            with pytest.raises(ShutDownError):
                await waiter
        with pytest.raises(ShutDownError):
            await journal.room()
        with pytest.raises(ShutDownError):
            journal.submit([output("a", 9)])
        with pytest.raises(ShutDownError):
            journal.erase(erased("a"))
        with pytest.raises(ShutDownError):
            await everything(journal)
        with pytest.raises(ShutDownError):
            await journal.sessions()
        with pytest.raises(ShutDownError):
            await journal.recent_sessions(limit=1)
        assert journal.stats().last_seq == 6

    async def test_a_cancelled_closer_does_not_stop_the_closing(self, house: House) -> None:
        journal = await house.open()
        future = journal.submit([output("a", 0)])
        closing = asyncio.ensure_future(journal.close())
        await asyncio.sleep(0)
        closing.cancel()
        await journal.close()
        assert list(await future) == [1]

    async def test_closing_while_readers_stream_and_after_a_failure(self, house: House) -> None:
        journal = await house.open()
        await journal.submit([output("a", n) for n in range(2000)])
        reading = journal.entries()
        assert (await anext(reading)).seq == 1
        await house.break_commits(journal)
        with pytest.raises(JournalError):
            await journal.submit([output("a", 0)])
        last = journal.submit([output("a", 0)])
        await journal.close()
        with pytest.raises(JournalError):
            await last
        with pytest.raises(ShutDownError):
            async for _ in reading:
                pass


async def _wait(future: Any) -> Any:
    return await future

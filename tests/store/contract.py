"""What every journal must do. One class of tests, run for each implementation by a subclass."""

from __future__ import annotations

import asyncio

import pytest

from shadow_reader.errors import InvalidInputError, JournalError, ShutDownError
from shadow_reader.events import types as t
from shadow_reader.events.ids import Ids
from shadow_reader.events.journal import Journal, SessionRow
from tests.store.contract_failures import FailureContract
from tests.store.contract_house import House
from tests.store.drafts import entry, erased, everything, opened, output, seqs, stopped


class JournalContract(FailureContract):
    """All of it."""

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

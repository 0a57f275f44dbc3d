"""The narrator beside the reader, under virtual time: when it writes, how much, and how it ends."""

from __future__ import annotations

import asyncio
import fcntl
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from shadow_reader.bounds import Bound
from shadow_reader.errors import BusyError, InvalidInputError
from shadow_reader.events import types as t
from shadow_reader.profiles import ShadowProfile
from shadow_reader.shadow.narrator import Narrator
from shadow_reader.shadow.telling import Telling
from tests.fakes import GRID, run_virtual, virtual
from tests.shadow.rig import Rig, quiet

THINK_END = 260
"""``</think>`` of ``fake_vocabulary``."""
CHUNK_S = 0.04
SHARE = 0.03


def narrator(rig: Rig, *, share: float = SHARE, most: int = 64, open_: int = 2) -> Narrator:
    found = Narrator(
        sessions=rig.sessions,
        engine=rig.engine,
        device=rig.device,
        lease=rig.lease,
        clock=rig.clock,
        line=rig.line,
        reader=rig.reader,
        windows=rig.windows,
        profiles={"told": ShadowProfile(mode="on", narrator="on")},
        share=share,
        most=most,
        bound=Bound("summaries", open_),
    )

    def changed(session: str) -> None:
        rig.reader.wake(session)
        found.tell(session)

    rig.sessions.on_change = changed
    return found


def a_rig(**more: Any) -> Rig:
    return Rig(chunk_s=CHUNK_S, **more)


async def thought(rig: Rig, session: str = "s", *, end: bool = True) -> None:
    """A turn whose output holds a thought that has ended."""
    await rig.prompt(session, list(range(5 * GRID)), "t1")
    await rig.output(session, "t1", 0, [7, 8, THINK_END, 9])
    if end:
        await rig.end(session, "t1")


def begin(rig: Rig, telling: Narrator, session: str = "s", **more: Any) -> Telling:
    view = rig.reader.roster.known(session)
    assert view is not None
    return telling.begin(session, view, **more)


async def text_of(telling: Narrator, one: Telling) -> str:
    return "".join([piece async for piece in telling.pieces(one)])


async def summaries(rig: Rig, session: str = "s") -> list[t.Summary]:
    return await rig.events(session, t.Summary)


@virtual
async def test_it_is_written_on_top_of_the_whole_session_and_journaled() -> None:
    rig = a_rig().start()
    telling = narrator(rig)
    rig.engine.says = "It edits a file \U0001fae0."
    await thought(rig)
    one = begin(rig, telling)
    assert await text_of(telling, one) == "It edits a file \U0001fae0."
    reply = await one.reply
    assert (reply.text, reply.reason, reply.turn) == ("It edits a file \U0001fae0.", "stop", "t1")
    (event,) = await summaries(rig)
    assert bytes(event.ids).decode() == "It edits a file \U0001fae0."
    assert (event.about, event.position) == (5 * GRID + 3, 5 * GRID + 4)
    assert (event.reason, event.behind) == ("stop", 0)
    (writing,) = rig.engine.writings
    assert writing.base[: 5 * GRID + 4] == (*range(5 * GRID), 7, 8, THINK_END, 9)
    assert b"what you were just thinking about" in bytes(
        one for one in writing.base[5 * GRID + 4 :] if one < 256
    )
    assert writing.released
    assert rig.lease.free
    rig.assert_exact("s")
    await rig.stop()


@virtual
async def test_what_has_no_thought_and_what_is_too_much_is_refused() -> None:
    rig = a_rig().start()
    telling = narrator(rig, open_=1)
    await rig.whole_turn("none", [1, THINK_END, 3], "t1", [4, 5])
    with pytest.raises(InvalidInputError, match="no thought that has ended"):
        begin(rig, telling, "none")
    await thought(rig)
    one = begin(rig, telling)
    with pytest.raises(BusyError):
        begin(rig, telling)
    await text_of(telling, one)
    await asyncio.sleep(0)
    await text_of(telling, begin(rig, telling))
    assert telling.status().open == 0
    assert [reply.reason for reply in telling.status().last] == ["stop", "stop"]
    await rig.stop()


@virtual
async def test_it_is_cut_at_its_limit_and_given_up_after_its_time() -> None:
    rig = a_rig().start()
    telling = narrator(rig, most=5)
    await thought(rig)
    assert await text_of(telling, begin(rig, telling)) == "It ed"
    async with rig.lease.request():
        one = begin(rig, telling, timeout_s=3.0)
        began = rig.clock.monotonic()
        assert await text_of(telling, one) == ""
        assert rig.clock.monotonic() - began == pytest.approx(3.0)
    assert [event.reason for event in await summaries(rig)] == ["length", "timeout"]
    assert all(writing.released for writing in rig.engine.writings)
    await rig.stop()


@virtual
async def test_a_request_waits_for_one_slice_at_most() -> None:
    rig = a_rig().start()
    telling = narrator(rig)
    rig.engine.says = "x" * 60
    await thought(rig)
    await quiet(5)
    one = begin(rig, telling)
    listening = asyncio.create_task(text_of(telling, one))
    for _ in range(5):
        await asyncio.sleep(0.07)
        began = rig.clock.monotonic()
        async with rig.lease.request():
            assert rig.clock.monotonic() - began <= CHUNK_S + 1e-6
            await asyncio.sleep(1)
    assert await listening == "x" * 60
    await rig.stop()


@virtual
async def test_with_its_turn_and_with_its_listener_it_ends() -> None:
    rig = a_rig(share=0.02, streamed=True).start()
    telling = narrator(rig)
    rig.engine.says = "x" * 60
    await thought(rig, end=False)
    one = begin(rig, telling)
    for offset in range(4, 800):
        await asyncio.sleep(0.03)
        await rig.output("s", "t1", offset, [9])
    assert one.ids, "something was written in the turn"
    await rig.end("s", "t1")
    assert (await one.reply).reason == "turn ended"
    (event,) = await summaries(rig)
    assert len(event.ids) == len(one.ids) < 60
    await quiet(5)
    again = begin(rig, telling)
    pieces = telling.pieces(again)
    assert await anext(pieces)
    await pieces.aclose()
    assert (await again.reply).reason == "cancelled"
    assert all(writing.released for writing in rig.engine.writings)
    assert rig.lease.free
    rig.assert_exact("s")
    await rig.stop()


@virtual
async def test_a_prompt_that_replaces_the_thought_and_an_erasure_end_it() -> None:
    rig = a_rig().start()
    telling = narrator(rig)
    await thought(rig)
    async with rig.lease.request():
        one = begin(rig, telling)
        await asyncio.sleep(1)
        await rig.whole_turn("s", [1, 2, 3], "t2")
    assert await text_of(telling, one) == ""
    assert (await one.reply).reason == "replaced"
    await thought(rig, "gone")
    await quiet(5)
    async with rig.lease.request():
        one = begin(rig, telling, "gone")
        await asyncio.sleep(1)
        await rig.erase("gone")
    assert await text_of(telling, one) == ""
    assert not rig.engine.writings
    assert [event.reason for event in await summaries(rig)] == ["replaced"]
    await rig.stop()


@virtual
async def test_a_profile_has_it_written_when_the_thought_ends() -> None:
    rig = a_rig(share=0.02, streamed=True).start()
    rig.sessions.limits = replace(rig.sessions.limits, profiles={"told": True})
    telling = narrator(rig)
    for session, profile in (("s", "told"), ("quiet", None)):
        receipt = await rig.sessions.prompt(session, list(range(40)), turn="t1", profile=profile)
        await receipt
    await rig.output("s", "t1", 0, [7, 8])
    await asyncio.sleep(1)
    assert telling.status().open == 0
    await rig.output("quiet", "t1", 0, [THINK_END])
    await rig.output("s", "t1", 2, [THINK_END])
    assert telling.status().open == 1
    for offset in range(3, 1500):
        await asyncio.sleep(0.03)
        await rig.output("s", "t1", offset, [9])
        await rig.output("quiet", "t1", offset - 2, [9])
    await rig.end("s", "t1")
    await rig.end("quiet", "t1")
    await quiet(5)
    (event,) = await summaries(rig)
    assert bytes(event.ids).decode() == "It edits a file."
    assert (event.about, event.reason) == (43, "stop")
    assert not await summaries(rig, "quiet")
    await rig.stop()


@virtual
async def test_where_the_engine_calls_its_rounds_it_writes_in_them_alone() -> None:
    rig = a_rig(share=0.02).start()
    telling = narrator(rig)
    await thought(rig, end=False)
    await rig.reader.round()  # from now on its rounds are those that it calls
    one = begin(rig, telling)
    paused = False

    def looks(method: str, _session: str) -> None:
        assert paused or method not in ("write", "next"), "beside the engine"

    rig.engine.before = looks
    for _ in range(900):
        await asyncio.sleep(0.05)
        paused = True
        await rig.reader.round()
        paused = False
        if one.reply.done():
            break
    assert (await one.reply).reason == "stop"
    await rig.stop()


@virtual
async def test_under_a_hold_and_in_prefill_nothing_is_written() -> None:
    rig = a_rig(share=0.02).start()
    telling = narrator(rig)
    await thought(rig)
    await quiet(5)
    hold = rig.windows.holds.begin("a benchmark", 100.0)
    one = begin(rig, telling)
    await asyncio.sleep(20)
    assert not rig.engine.writings
    await rig.prompt("other", [1, 2], "t1")
    rig.windows.holds.end(hold.hold)
    await asyncio.sleep(20)
    assert not rig.engine.writings, "in prefill"
    await rig.end("other", "t1")
    assert await text_of(telling, one) == "It edits a file."
    await rig.stop()


def test_while_somebody_else_has_the_box_nothing_is_written(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "box.lock"
        rig = a_rig(box_lock=path).start()
        telling = narrator(rig)
        await thought(rig)
        await quiet(5)
        with path.open("r+") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            one = begin(rig, telling)
            await asyncio.sleep(5)
            assert not rig.engine.writings
        assert await text_of(telling, one) == "It edits a file."
        with path.open("r+") as other:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it was let go of
        await rig.stop()

    run_virtual(main())


@virtual
async def test_a_state_that_left_while_it_waited_is_read_again_in_chunks_first() -> None:
    rig = a_rig().start()
    telling = narrator(rig)
    await thought(rig)
    await quiet(5)
    async with rig.lease.request():
        one = begin(rig, telling)
        await asyncio.sleep(1)
        rig.engine.drop("s")  # as when another session needs its room
        rig.reader.roster.dropped("s", "to make room", rig.sessions.messages)
        before = len(rig.engine.calls)
    await quiet(5)
    assert not rig.engine.writings, "it is not read in one go"
    await rig.whole_turn("s", [*range(5 * GRID), 7, 8, THINK_END, 9, 1], "t2")
    assert await text_of(telling, one) == "It edits a file."
    methods = [method for method, _ in rig.engine.calls[before:]]
    assert methods.index("write") > max(
        place for place, method in enumerate(methods) if method == "read_chunk"
    )
    assert methods.count("read_chunk") == 5
    rig.assert_exact("s")
    await rig.stop()


@virtual
async def test_a_rewind_that_it_meets_is_the_reader_s_and_is_journaled() -> None:
    """A prompt keeps the thought and cuts behind it, while the summary waits for the device."""
    rig = a_rig().start()
    telling = narrator(rig)
    await rig.prompt("s", list(range(2 * GRID)), "t1")
    await rig.output("s", "t1", 0, [THINK_END, *range(3 * GRID)])
    await rig.end("s", "t1")
    await quiet(5)
    async with rig.lease.request():
        one = begin(rig, telling)
        await asyncio.sleep(1)
        known = [*range(2 * GRID), THINK_END, *range(GRID), *[3] * GRID]
        await rig.whole_turn("s", known, "t2")
    assert await text_of(telling, one) == "It edits a file."
    await quiet(5)
    assert len(await rig.events("s", t.Rewind)) == 1
    (writing,) = rig.engine.writings
    assert writing.base[: len(known)] == tuple(known)
    await rig.check_laws("s")
    rig.assert_exact("s")
    await rig.stop()


@virtual
async def test_of_an_erased_session_nothing_comes_back() -> None:
    rig = a_rig().start()
    telling = narrator(rig)
    rig.engine.says = "x" * 60
    await thought(rig)
    await quiet(5)
    one = begin(rig, telling)
    pieces = telling.pieces(one)
    assert await anext(pieces)
    await rig.erase("s")
    await thought(rig)  # another session of that name
    await quiet(5)
    assert one.reply.done()
    assert not telling.status().last
    assert not await summaries(rig)
    await pieces.aclose()
    await rig.stop()


@pytest.mark.parametrize("seed", [1, 2])
def test_neither_share_is_ever_passed_by_more_than_a_slice(seed: int) -> None:
    """The reader's and the narrator's, each for itself, in every turn."""

    async def main() -> None:
        chance = Random(seed)
        rig = a_rig(share=0.02).start()
        telling = narrator(rig, open_=4)
        rig.engine.says = "x" * 60
        reads: dict[str, float] = {}
        writes: dict[str, float] = {}
        began: dict[str, float] = {}
        run = rig.device.run

        async def counted(job: Any, *args: Any, **more: Any) -> Any:
            before = rig.clock.monotonic()
            name = getattr(getattr(job, "func", job), "__name__", "")
            found = await run(job, *args, **more)
            spent = rig.clock.monotonic() - before
            into = writes if name in ("_open", "next") else reads if name == "stride" else {}
            for turn in began:
                into[turn] = into.get(turn, 0.0) + spent
            return found

        rig.device.run = counted  # type: ignore[method-assign]
        known: list[int] = []
        for number in range(8):
            turn = f"t{number}"
            known = [*known, *[(number + i) % 200 for i in range(chance.randrange(1, 20))]]
            await rig.prompt("s", known, turn)
            await asyncio.sleep(chance.uniform(0, 3))
            await rig.output("s", turn, 0, [THINK_END])
            known.append(THINK_END)
            began[turn] = first = rig.clock.monotonic()
            begin(rig, telling)
            for offset in range(1, chance.randrange(100, 400)):
                await asyncio.sleep(chance.choice([0.01, 0.03, 0.1]))
                await rig.output("s", turn, offset, [9])
                known.append(9)
                lived = rig.clock.monotonic() - first
                assert reads.get(turn, 0.0) <= 0.02 * lived + 0.15 + CHUNK_S
                assert writes.get(turn, 0.0) <= SHARE * lived + 0.15 + CHUNK_S
            await rig.end("s", turn)
            del began[turn]
            await asyncio.sleep(chance.uniform(0, 0.5))
        assert sum(writes.values()) > 0
        await quiet(60)
        rig.assert_exact("s")
        await rig.stop()

    run_virtual(main())

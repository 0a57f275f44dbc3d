"""What happens to questions before they are answered: erasures, cancels, states of others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from shadow_reader.errors import ConflictError, ShadowError
from shadow_reader.events import types as t
from shadow_reader.events.ids import Ids
from shadow_reader.shadow.box_lock import BoxLock
from shadow_reader.shadow.questions import Ask
from tests.fakes import GRID, FakeEngine, run_virtual, virtual
from tests.shadow.rig import CHUNK_S, QUESTION, Rig, ids, quiet

YES_NO = ("yes", "no")
LETTERS = [ord("A"), ord("B")]


def forwards(rig: Rig) -> int:
    return [method for method, _ in rig.engine.calls].count("ask")


def two_alike() -> Rig:
    """An engine on which sessions that begin alike stand on the same pages."""
    return Rig(engine=FakeEngine(shares=True)).start()


@pytest.mark.parametrize("calibrate", [False, True])
def test_a_session_erased_in_the_middle_gets_no_state_from_its_questions(
    *, calibrate: bool
) -> None:
    async def main() -> None:
        rig = two_alike()
        for session in ("other", "s"):
            await rig.whole_turn(session, ids(9 * GRID + 3), "t1")
        await quiet()
        questions = [Ask([5, 6, 7 + n], YES_NO, calibrate) for n in range(6)]
        asking = asyncio.create_task(rig.line.ask_many("s", questions))
        await asyncio.sleep(1.5 * CHUNK_S)
        await rig.erase("s")
        with pytest.raises(ShadowError):
            await asking
        await quiet()
        assert set(rig.engine.states) == {"other"}
        assert rig.lease.free
        await rig.stop()

    run_virtual(main())


@virtual
async def test_a_session_opened_anew_under_the_name_is_not_asked_what_the_old_one_was() -> None:
    rig = two_alike()
    await rig.whole_turn("s", ids(9 * GRID + 3), "t1")
    await quiet()
    asking = asyncio.create_task(rig.line.ask_many("s", [Ask(QUESTION, YES_NO)] * 6))
    await asyncio.sleep(1.5 * CHUNK_S)
    await rig.erase("s")
    await rig.whole_turn("s", ids(4 * GRID, 9), "t1")
    with pytest.raises(ShadowError):
        await asking
    await quiet()
    rig.assert_exact("s")
    await rig.check_laws("s")
    assert not await rig.events("s", t.Answer, t.QuestionEnded)
    await rig.stop()


@virtual
async def test_when_whoever_asked_goes_away_the_rest_is_not_asked() -> None:
    rig = Rig().start()
    await rig.whole_turn("s", ids(30), "t1")
    await quiet()
    before = forwards(rig)
    asking = asyncio.create_task(rig.line.ask_many("s", [Ask(QUESTION, YES_NO)] * 8))
    await asyncio.sleep(1.5 * CHUNK_S)
    asking.cancel()
    await asyncio.wait([asking])
    await quiet(20)
    assert forwards(rig) - before <= 2
    ended = await rig.events("s", t.Answer, t.QuestionEnded)
    assert len({event.question for event in ended}) == len(ended) == 8
    await rig.stop()


@virtual
async def test_what_others_have_read_does_not_carry_the_state_past_the_position() -> None:
    rig = two_alike()
    await rig.whole_turn("other", ids(14 * GRID), "t1")
    await quiet()
    async with rig.lease.request():
        await rig.whole_turn("s", ids(14 * GRID + 2), "t1")
        asked = rig.ask("s", wait="position", position=5 * GRID + 2)
        await asyncio.sleep(1)
    reply = await asked
    known = ids(5 * GRID + 2)
    assert tuple(reply.probabilities.values()) == FakeEngine.answer_to([*known, *QUESTION], LETTERS)
    assert reply.position == 5 * GRID + 2
    await quiet()
    rig.assert_exact("s")
    await rig.check_laws("s")
    await rig.stop()


def test_who_is_patient_waits_for_the_box_lock_and_the_others_do_not(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "box.lock"
        rig = Rig(box_lock=path).start()
        await rig.whole_turn("s", ids(GRID + 3), "t1")
        await quiet()
        somebody = BoxLock(path)
        assert somebody.try_take()
        patient = rig.ask("s", wait="position", position=GRID, patient=True, timeout_s=900.0)
        await quiet(20)
        assert not patient.done()
        assert (await rig.ask("s")).position == GRID + 3
        await quiet(20)
        assert not patient.done()
        somebody.release()
        assert (await patient).position == GRID
        assert somebody.try_take(), "it was let go of"
        somebody.close()
        await rig.stop()

    run_virtual(main())


@virtual
async def test_who_is_patient_waits_for_the_next_look_for_an_idle_window() -> None:
    rig = Rig(idle_poll_s=64.0, chunk_s=0.125).start()
    await rig.whole_turn("s", ids(GRID + 3), "t1")
    await quiet(65)
    await rig.clock_to(96.0)
    patient = rig.ask("s", wait="position", position=GRID, patient=True, timeout_s=900.0)
    await asyncio.sleep(32)
    assert not patient.done()
    await asyncio.sleep(2)
    assert patient.done()
    await rig.stop()


@virtual
async def test_ids_that_are_not_what_was_meant_are_not_asked_about() -> None:
    rig = Rig().start()
    await rig.whole_turn("s", ids(30), "t1")
    for base, good in ((ids(20), True), (ids(20, 5), False), (ids(40), False)):
        asking = rig.line.ask_many(
            "s",
            [Ask(QUESTION, YES_NO)],
            wait="position",
            position=len(base),
            base=Ids.of(base),
        )
        if good:
            (reply,) = await asking
            assert reply.position == 20
        else:
            with pytest.raises(ConflictError):
                await asking
    assert len(await rig.events("s", t.Question)) == 1
    await rig.stop()


@virtual
async def test_the_answers_of_a_batch_go_into_the_journal_together_and_in_order() -> None:
    rig = Rig().start()
    await rig.whole_turn("s", ids(30), "t1")
    await quiet()
    rig.journal.commit_s = 1.0
    began = rig.clock.monotonic()
    replies = await rig.line.ask_many("s", [Ask([5, 6, 7 + n], YES_NO) for n in range(6)])
    assert rig.clock.monotonic() - began < 4.0, "two or three commits, not seven"
    answers = [event.question for event in await rig.events("s", t.Answer)]
    assert answers == [reply.question for reply in replies]
    await rig.stop()

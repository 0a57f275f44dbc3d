"""Questions about the first so many ids, several at once, and with their prior taken out."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadow_reader.errors import (
    BusyError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    ShadowError,
    TooLargeError,
)
from shadow_reader.events import types as t
from shadow_reader.shadow.questions import Ask, calibrated
from tests.fakes import CONTEXT_IDS, GRID, FakeEngine, run_virtual, virtual
from tests.shadow.rig import CHUNK_S, LIMITS, QUESTION, Rig, ids, quiet

YES_NO = ("yes", "no")
LETTERS = [ord("A"), ord("B")]


def expected(known: list[int]) -> tuple[float, ...]:
    """What a fresh prefill of these ids answers."""
    return FakeEngine.answer_to([*known, *QUESTION], LETTERS)


async def ends(rig: Rig, session: str) -> list[str]:
    return [event.reason for event in await rig.events(session, t.QuestionEnded)]


# -- positions ---------------------------------------------------------------------------------


@virtual
async def test_it_is_answered_when_the_reader_comes_there_and_before_it_reads_on() -> None:
    rig = Rig().start()
    await rig.whole_turn("s", ids(40 * GRID), "t1")
    asked = rig.ask("s", wait="position", position=10 * GRID + 3)
    reply = await asked
    assert (reply.position, reply.behind) == (10 * GRID + 3, 30 * GRID - 3)
    assert tuple(reply.probabilities.values()) == expected(ids(10 * GRID + 3))
    assert len(rig.read_of("s")) == 10 * GRID, "nothing more is read first"
    (question,) = await rig.events("s", t.Question)
    assert (question.position, question.about) == (40 * GRID, 10 * GRID + 3)
    await quiet()
    rig.assert_exact("s")
    await rig.check_laws("s")
    await rig.stop()


@virtual
async def test_in_a_turn_s_rounds_too() -> None:
    rig = Rig(chunk_s=0.04, share=0.02).start()
    await rig.prompt("s", ids(40 * GRID), "t1")
    asked = rig.ask("s", wait="position", position=6 * GRID + 1, timeout_s=100.0)
    for offset in range(1000):
        await asyncio.sleep(0.03)
        await rig.output("s", "t1", offset, [1])
        if asked.done():
            break
    assert len(rig.read_of("s")) == 6 * GRID
    assert tuple((await asked).probabilities.values()) == expected(ids(6 * GRID + 1))
    await rig.stop()


@virtual
async def test_behind_the_reader_it_is_answered_on_a_checkpoint_or_refused() -> None:
    rig = Rig().start()
    prompt = ids(5 * GRID + 4)
    await rig.whole_turn("s", prompt, "t1")
    await rig.whole_turn("s", [*prompt, *ids(9 * GRID, 5)], "t2")
    await quiet()
    for position in (5 * GRID, 5 * GRID + 2, 6 * GRID - 1, 0, 3):
        reply = await rig.ask("s", wait="position", position=position)
        known = [*prompt, *ids(9 * GRID, 5)][:position]
        assert tuple(reply.probabilities.values()) == expected(known)
        assert reply.position == position
    with pytest.raises(ConflictError, match="nothing left at line") as caught:
        await rig.ask("s", wait="position", position=7 * GRID)
    assert caught.value.details["lines"] == [0, 5 * GRID, 14 * GRID]
    assert await ends(rig, "s") == ["failed"]
    rig.assert_exact("s")
    await rig.stop()


@virtual
async def test_a_prompt_that_replaces_the_ids_ends_it_and_one_that_keeps_them_does_not() -> None:
    rig = Rig(turns_block=True).start()
    await rig.prompt("s", ids(20 * GRID), "t1")
    kept = rig.ask("s", wait="position", position=10 * GRID, timeout_s=900.0)
    gone = rig.ask("s", wait="position", position=12 * GRID, timeout_s=900.0)
    await quiet(10)
    await rig.prompt("s", [*ids(11 * GRID), *ids(3 * GRID, 5)], "t2")
    with pytest.raises(ConflictError, match="replaced the first"):
        await gone
    await rig.end("s", "t2")
    assert tuple((await kept).probabilities.values()) == expected(ids(10 * GRID))
    assert await ends(rig, "s") == ["failed"]
    await rig.stop()


@virtual
async def test_a_shorter_prompt_ends_it_though_it_will_never_be_reached() -> None:
    rig = Rig(turns_block=True).start()
    await rig.prompt("s", ids(20 * GRID), "t1")
    gone = rig.ask("s", wait="position", position=12 * GRID, timeout_s=900.0)
    await quiet(10)
    await rig.prompt("s", ids(2 * GRID), "t2")
    with pytest.raises(ConflictError):
        await gone
    await rig.stop()


@virtual
async def test_who_is_patient_takes_no_time_from_a_turn_and_does_not_go_before_others() -> None:
    rig = Rig(chunk_s=0.04, share=0.02).start()
    await rig.whole_turn("s", ids(3), "t1")
    await rig.prompt("s", ids(3 * GRID), "t2")
    asked = rig.ask("s", wait="position", position=3, patient=True, timeout_s=900.0)
    await quiet(60)
    assert not asked.done(), "in prefill"
    for offset in range(400):
        await asyncio.sleep(0.03)
        await rig.output("s", "t2", offset, [1])
    assert asked.done(), "in a round, within the ration"
    await rig.end("s", "t2")
    await quiet(5)
    (used,) = await rig.events("s", t.RationUsed)
    assert used.used_ms <= 0.02 * used.decode_ms + 1000 * 0.04
    assert used.used_ms >= 1000 * 0.04, "the answer counts"
    await rig.stop()


@virtual
async def test_a_position_beyond_the_known_ids_or_without_room_is_refused() -> None:
    rig = Rig().start()
    await rig.whole_turn("s", ids(20), "t1")
    for bad, field in (
        ({"wait": "position", "position": 21}, "position"),
        ({"wait": "position", "position": -1}, "position"),
        ({"wait": "position"}, "position"),
        ({"wait": "fresh", "position": 3}, "position"),
        ({"wait": "position", "position": True}, "position"),
        ({"wait": "later"}, "wait"),
    ):
        with pytest.raises(InvalidInputError) as caught:
            await rig.ask("s", **bad)
        assert caught.value.details["field"] == field
    await rig.whole_turn("s", ids(CONTEXT_IDS - 2), "t2")
    with pytest.raises(TooLargeError):
        await rig.ask("s")
    assert (await rig.ask("s", wait="position", position=3)).position == 3
    assert len(await rig.events("s", t.Question)) == 1
    await rig.stop()


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_whatever_came_before_it_is_what_a_fresh_prefill_answers(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 12 * GRID), min_size=1, max_size=4))
    cuts = data.draw(st.lists(st.integers(0, 6 * GRID), min_size=4, max_size=4))
    shares = data.draw(st.lists(st.floats(0, 1), min_size=4, max_size=4))
    pause_s = data.draw(st.sampled_from([0.0, 0.35, 3.0]))

    async def main() -> None:
        rig = Rig().start()
        known: list[int] = []
        asked: list[tuple[list[int], asyncio.Task[Any]]] = []
        for turn, (length, cut, share) in enumerate(zip(lengths, cuts, shares, strict=False)):
            known = [*known[:cut], *ids(length, turn)]
            await rig.whole_turn("s", known, f"t{turn}")
            position = round(share * len(known))
            task = rig.ask("s", wait="position", position=position, timeout_s=500.0)
            asked.append((known[:position], task))
            await asyncio.sleep(pause_s)
        for base, task in asked:
            try:
                reply = await task
            except ConflictError:
                continue
            assert tuple(reply.probabilities.values()) == expected(base)
        await quiet()
        rig.assert_exact("s")
        assert rig.lease.free
        await rig.stop()

    run_virtual(main())


# -- several at once ---------------------------------------------------------------------------


@virtual
async def test_several_are_asked_and_answered_together_as_each_would_be_alone() -> None:
    rig = Rig().start()
    await rig.whole_turn("s", ids(30), "t1")
    await quiet()
    texts = [list(QUESTION), [8, 9], list(QUESTION), [4] * 60]
    many = await rig.line.ask_many("s", [Ask(text, YES_NO) for text in texts])
    seqs = [e.seq async for e in rig.journal.entries(kinds=["question"])]
    assert seqs == list(range(seqs[0], seqs[0] + 4))
    alone = [await rig.line.ask("s", text, YES_NO) for text in texts]
    assert [r.probabilities for r in many] == [r.probabilities for r in alone]
    assert len({r.question for r in many}) == 4
    await rig.stop()


@virtual
async def test_a_request_that_comes_meanwhile_waits_for_one_forward() -> None:
    rig = Rig().start()
    await rig.whole_turn("s", ids(30), "t1")
    await quiet()
    asking = asyncio.create_task(rig.line.ask_many("s", [Ask(QUESTION, YES_NO)] * 4))
    await asyncio.sleep(1.5 * CHUNK_S)
    began = rig.clock.monotonic()
    async with rig.lease.request():
        assert rig.clock.monotonic() - began <= CHUNK_S
        await asyncio.sleep(5)
        assert not asking.done()
    assert len(await asking) == 4
    await rig.stop()


@virtual
async def test_with_one_that_is_bad_none_is_asked() -> None:
    rig = Rig().start()
    await rig.whole_turn("s", ids(30), "t1")
    good = Ask(QUESTION, YES_NO)
    bad: list[tuple[list[Ask], type[ShadowError], dict[str, Any]]] = [
        ([good, Ask(QUESTION, ["a", "a"])], InvalidInputError, {"question": 1, "field": "choices"}),
        ([good, good, Ask(" ", YES_NO)], InvalidInputError, {"question": 2, "field": "question"}),
        ([Ask([], YES_NO), good], InvalidInputError, {"question": 0, "field": "question_ids"}),
        ([good, Ask([1] * 65, YES_NO)], TooLargeError, {"question": 1, "limit": 64}),
        ([], InvalidInputError, {"field": "questions", "limit": LIMITS.open_questions}),
        ([good] * (LIMITS.open_questions + 1), InvalidInputError, {"field": "questions"}),
    ]
    for questions, kind, facts in bad:
        with pytest.raises(kind) as caught:
            await rig.line.ask_many("s", questions)
        assert caught.value.details.items() >= facts.items()
    with pytest.raises(NotFoundError):
        await rig.line.ask_many("nobody", [good])
    waiting = rig.ask("s", wait="position", position=30, timeout_s=500.0)
    async with rig.lease.request():
        await asyncio.sleep(0.1)
        with pytest.raises(BusyError):
            await rig.line.ask_many("s", [good] * LIMITS.open_questions)
    await waiting
    assert len(await rig.events("s", t.Question)) == 1
    await rig.stop()


@virtual
async def test_one_that_fails_ends_the_others_and_so_does_whoever_goes_away() -> None:
    rig = Rig().start()
    await rig.whole_turn("s", ids(30), "t1")
    await quiet()
    asking = asyncio.create_task(rig.line.ask_many("s", [Ask(QUESTION, YES_NO)] * 4))
    await asyncio.sleep(1.5 * CHUNK_S)
    asking.cancel()
    await asyncio.wait([asking])
    await quiet(5)
    answered = len(await rig.events("s", t.Answer))
    assert answered + len(await ends(rig, "s")) == 4
    assert set(await ends(rig, "s")) <= {"cancelled"}
    assert not rig.line.waiting()
    assert rig.lease.free
    await rig.stop()


# -- calibration -------------------------------------------------------------------------------


@virtual
async def test_the_prior_is_what_the_question_alone_gives_and_is_divided_by() -> None:
    rig = Rig().start()
    await rig.whole_turn("s", ids(30), "t1")
    await quiet()
    plain = await rig.ask("s")
    before = len(rig.engine.calls)
    reply = await rig.ask("s", calibrate=True)
    prior = FakeEngine.answer_to(QUESTION, LETTERS)
    assert reply.prior is not None
    assert tuple(reply.prior.values()) == prior
    raw = tuple(plain.probabilities.values())
    assert tuple(reply.probabilities.values()) == calibrated(raw, prior)
    assert reply.label == max(reply.probabilities, key=lambda label: reply.probabilities[label])
    forwards = [method for method, _ in rig.engine.calls[before:]].count("ask")
    assert forwards == 2
    again = await rig.ask("s", calibrate=True)
    assert again.probabilities == reply.probabilities
    forwards = [method for method, _ in rig.engine.calls[before:]].count("ask")
    assert forwards == 3, "the prior is remembered"
    answers = await rig.events("s", t.Answer)
    assert [answer.prior for answer in answers] == [None, prior, prior]
    assert plain.prior is None
    rig.assert_exact("s")
    await rig.stop()


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=26))
def test_calibrated_probabilities_are_probabilities(pairs: list[tuple[float, float]]) -> None:
    raw = [p + 1e-6 for p, _ in pairs]
    prior = [q for _, q in pairs]
    found = calibrated(raw, prior)
    assert sum(found) == pytest.approx(1)
    assert all(0 <= p <= 1 for p in found)
    even = [1 / len(raw)] * len(raw)
    assert calibrated(raw, even) == pytest.approx([p / sum(raw) for p in raw])

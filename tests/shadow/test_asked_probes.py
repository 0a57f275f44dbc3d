"""Questions that probes answer: from one forward together, the same bits alone, journaled."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shadow_reader.errors import (
    AskTimeoutError,
    ConflictError,
    ForkError,
    InvalidInputError,
    NotFoundError,
    ProbeError,
    TooLargeError,
)
from shadow_reader.events import types as t
from shadow_reader.events.ids import Ids
from shadow_reader.shadow.questions import Ask, Reply
from shadow_reader.shadow.served_probe import ProbeFacts, ServedProbe
from tests.fakes import CONTEXT_IDS, EFFORT, GRID, HIDDEN, LAYERS, FakeEngine, run_virtual, virtual
from tests.shadow.rig import QUESTION, Rig, ids, quiet

CLASSES = ("calm", "cross", "glad")


def probe(
    name: str, layer: int = LAYERS, last: int = 1, suffix: tuple[int, ...] = (9,)
) -> ServedProbe:
    """One whose weights come of its name."""
    drawn = np.random.default_rng(list(name.encode()))
    weights = drawn.standard_normal((len(CLASSES), HIDDEN)).astype(np.float32)

    def classify(vector: NDArray[np.float32]) -> tuple[float, ...]:
        odds = np.exp((weights @ vector).astype(np.float64))
        return tuple((odds / odds.sum()).tolist())

    facts = ProbeFacts(name, 3, 0.75, 0.5)
    return ServedProbe(facts, Ids.of(suffix), layer, last, CLASSES, classify)


PROBES = {
    one.facts.name: one
    for one in (
        probe("low", 0),
        probe("high", LAYERS),
        probe("top", LAYERS),
        probe("wide", 2, last=5),
        probe("long", 2, suffix=(9, 8, 7)),
    )
}


def rig_of(**more: object) -> Rig:
    rig = Rig(**more)  # type: ignore[arg-type]

    def find(name: str) -> ServedProbe:
        if name == "retired":
            raise ProbeError("probe 'retired' is retired", probe=name)
        if name not in PROBES:
            raise NotFoundError(f"no probe {name!r}", field="probe", found=name)
        return PROBES[name]

    rig.line.probes = find
    return rig.start()


def expected(name: str, known: list[int]) -> tuple[float, ...]:
    """What the probe says on top of exactly these ids."""
    one = PROBES[name]
    (vector,) = FakeEngine.vectors_of([*known, *one.suffix], [one.layer], one.last)
    return one.classify(vector)


def seen(rig: Rig) -> int:
    return sum(method == "vectors" for method, _ in rig.engine.calls)


async def asked(rig: Rig, *names: str, **more: object) -> tuple[Reply, ...]:
    return await rig.line.ask_many("s", [Ask(probe=name) for name in names], **more)  # type: ignore[arg-type]


@virtual
async def test_a_probe_answers_with_its_classes_version_and_figures_and_is_journaled() -> None:
    rig = rig_of()
    known = ids(3 * GRID + 5)
    await rig.whole_turn("s", known, "t1")
    (reply,) = await asked(rig, "high")
    assert tuple(reply.probabilities) == CLASSES
    assert tuple(reply.probabilities.values()) == expected("high", known)
    assert reply.probabilities[reply.label] == max(reply.probabilities.values())
    assert (reply.letter, reply.prior) == ("", None)
    assert (reply.position, reply.behind) == (len(known), 0)
    assert reply.probe == ProbeFacts("high", 3, 0.75, 0.5)
    question, answer = await rig.events("s", t.Question, t.Answer)
    assert (question.kind, question.probe, question.probe_version) == ("probe", "high", 3)
    assert (question.choices, tuple(question.ids)) == (CLASSES, (9,))
    assert (answer.question, answer.label) == (question.question, reply.label)
    assert answer.probabilities == tuple(reply.probabilities.values())
    await rig.check_laws("s")
    await rig.stop()


@virtual
async def test_probes_with_one_suffix_and_mean_are_answered_from_one_forward() -> None:
    rig = rig_of()
    await rig.whole_turn("s", ids(2 * GRID + 5), "t1")
    await quiet()
    names = ["low", "high", "wide", "top", "long", "low"]
    questions = [*(Ask(probe=name) for name in names), Ask(QUESTION, ["yes", "no"])]
    before = len(rig.engine.calls)
    replies = await rig.line.ask_many("s", questions)
    calls = [method for method, _ in rig.engine.calls[before:]]
    assert (calls.count("vectors"), calls.count("ask")) == (3, 1)  # one of five's mean, one longer
    for name, reply in zip(names, replies, strict=False):
        assert reply.probe is not None
        assert reply.probe.name == name
        assert tuple(reply.probabilities.values()) == expected(name, ids(2 * GRID + 5))
    assert replies[-1].probe is None
    assert set(replies[-1].probabilities) == {"yes", "no"}
    await rig.stop()


@settings(max_examples=30 * EFFORT, deadline=None)
@given(
    names=st.lists(st.sampled_from(sorted(PROBES)), min_size=1, max_size=8),
    count=st.integers(1, 4 * GRID),
    place=st.floats(0, 1),
    wait=st.sampled_from(["fresh", "now", "position"]),
)
def test_an_answer_is_the_same_alone_and_in_a_batch(
    names: list[str], count: int, place: float, wait: str
) -> None:
    async def main() -> None:
        rig = rig_of()
        known = ids(count)
        position = round(place * count) if wait == "position" else None
        about: dict[str, object] = {"wait": wait, "position": position}
        turn = asyncio.create_task(rig.whole_turn("s", known, "t1"))
        if wait == "position":
            async with rig.lease.request():
                await turn
                asking = asyncio.create_task(asked(rig, *names, **about))
                await asyncio.sleep(1)
            together = await asking
        else:
            await turn
            await quiet()
            together = await asked(rig, *names, **about)
        assert position is None or {reply.position for reply in together} == {position}
        for name, reply in zip(names, together, strict=True):
            found = tuple(reply.probabilities.values())
            assert found == expected(name, known[: reply.position])
            if wait != "position":
                (alone,) = await asked(rig, name, **about)
                assert tuple(alone.probabilities.values()) == found
        await rig.stop()

    run_virtual(main())


@virtual
async def test_a_position_on_a_grid_line_is_no_special_case() -> None:
    rig = rig_of()
    async with rig.lease.request():
        await rig.whole_turn("s", ids(4 * GRID + 1), "t1")
        asking = [
            asyncio.create_task(asked(rig, "high", wait="position", position=place))
            for place in (0, GRID, 2 * GRID)
        ]
        await asyncio.sleep(1)
    for place, task in zip((0, GRID, 2 * GRID), asking, strict=True):
        (reply,) = await task
        assert tuple(reply.probabilities.values()) == expected("high", ids(place))
    await rig.stop()


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (Ask("Done?", probe="high"), "question"),
        (Ask([5], probe="high"), "question"),
        (Ask(choices=["a", "b"], probe="high"), "choices"),
        (Ask(calibrate=True, probe="high"), "calibrate"),
    ],
)
def test_a_probe_is_asked_by_its_name_alone(given: Ask, field: str) -> None:
    async def main() -> None:
        rig = rig_of()
        await rig.whole_turn("s", ids(9), "t1")
        with pytest.raises(InvalidInputError, match=f"without {field}") as caught:
            await rig.line.ask_many("s", [given])
        assert caught.value.details == {"field": "probe", "found": field}
        assert not await rig.events("s", t.Question)
        await rig.stop()

    run_virtual(main())


@virtual
async def test_one_that_may_not_be_asked_keeps_all_of_a_batch_from_being_asked() -> None:
    rig = rig_of()
    await rig.whole_turn("s", ids(9), "t1")
    for name, kind in (("retired", ProbeError), ("unknown", NotFoundError)):
        with pytest.raises(kind, match=rf"questions\[1\]: .*{name}") as caught:
            await asked(rig, "high", name)
        assert caught.value.details["question"] == 1
    assert not await rig.events("s", t.Question)
    await rig.stop()


@virtual
async def test_without_any_probes_none_is_known() -> None:
    rig = Rig().start()
    await rig.whole_turn("s", ids(9), "t1")
    with pytest.raises(NotFoundError) as caught:
        await asked(rig, "high")
    assert caught.value.details == {"field": "probe", "found": "high"}
    await rig.stop()


@virtual
async def test_one_that_waits_too_long_or_goes_away_is_journaled_as_ended() -> None:
    rig = rig_of()
    async with rig.lease.request():
        await rig.whole_turn("s", ids(3 * GRID), "t1")
        with pytest.raises(AskTimeoutError):
            await asked(rig, "high", "low", timeout_s=0.5)
        going = asyncio.create_task(asked(rig, "high"))
        await asyncio.sleep(0.5)
        going.cancel()
        await asyncio.wait([going])
    await quiet()
    ends = await rig.events("s", t.QuestionEnded)
    assert [end.reason for end in ends] == ["timeout", "timeout", "cancelled"]
    assert seen(rig) == 0
    await rig.stop()


@virtual
async def test_a_forward_that_fails_ends_the_question_and_leaves_the_session_as_it_was() -> None:
    rig = rig_of()
    await rig.whole_turn("s", ids(2 * GRID + 1), "t1")
    await quiet()

    def before(method: str, _session: str) -> None:
        if method == "vectors":
            raise RuntimeError("injected")

    rig.engine.before = before
    with pytest.raises(ForkError, match="injected"):
        await asked(rig, "high", "low")
    rig.engine.before = lambda _method, _session: None
    await asked(rig, "high")
    rig.assert_exact("s")
    await rig.check_laws("s")
    await rig.stop()


@virtual
async def test_a_suffix_that_no_longer_fits_is_refused() -> None:
    rig = rig_of()
    await rig.whole_turn("s", ids(CONTEXT_IDS), "t1")
    with pytest.raises(TooLargeError, match="0 are left"):
        await asked(rig, "high")
    await rig.stop()


@virtual
async def test_about_ids_whose_state_is_gone_is_a_conflict() -> None:
    rig = rig_of()
    await rig.whole_turn("s", ids(6 * GRID), "t1")
    await quiet()
    with pytest.raises(ConflictError, match="nothing left at line"):
        await asked(rig, "high", wait="position", position=2 * GRID + 1)
    await rig.stop()

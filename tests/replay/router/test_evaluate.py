"""Journals of the real runtime, asked again: the same bits, other words, other models."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shadow_reader.errors import (
    InvalidInputError,
    JournalFormatError,
    NotFoundError,
    TooLargeError,
    VocabularyError,
)
from shadow_reader.events import types as t
from shadow_reader.events.ids import Ids
from shadow_reader.replay.router.past import REPLACED, Filter, Wanted, past_questions
from shadow_reader.replay.router.wordings import Variant, Wording
from tests.replay.router.journals import (
    GRID,
    IM_END,
    engine,
    live,
    replay,
    rewrite,
    some_ids,
    talk,
    turn,
)


@pytest.mark.parametrize("seed", range(4))
async def test_the_control_agrees_bit_for_bit_after_any_history(tmp_path: Path, seed: int) -> None:
    """Rewinds and branches included: the ids are those of the moment."""
    turns = await talk(tmp_path, seed)
    report = await replay(tmp_path / "shadow.db")
    assert report.verdict == "holds"
    assert report.asked == turns
    (row,) = report.control
    assert (row.kin, row.answers, row.equal, row.largest) == ("same", turns, turns, 0.0)
    assert not report.skipped


async def test_with_snapshots_the_same_bits_and_fewer_ids_read(tmp_path: Path) -> None:
    await talk(tmp_path, 7)
    journal = tmp_path / "shadow.db"
    fresh = await replay(journal)
    found = await replay(journal, snapshots=tmp_path / "shadow.db-snapshots")
    assert (found.verdict, found.control[0].equal) == ("holds", found.asked)
    assert found.restored > 0
    assert found.read < fresh.read
    assert (fresh.restored, fresh.figures) == (0, found.figures)


async def test_one_changed_probability_fails_the_control(tmp_path: Path) -> None:
    await talk(tmp_path, 1, turns=3)

    def shift(data: str) -> str:
        first = re.search(r'"probabilities":\[([^,]+),', data)
        assert first is not None
        value = repr(float(first[1]) + 1e-12)
        return data[: first.start(1)] + value + data[first.end(1) :]

    rewrite(tmp_path / "shadow.db", "answer", shift)
    report = await replay(tmp_path / "shadow.db")
    assert report.verdict == "fails"
    (row,) = report.control
    assert (row.answers, row.equal) == (3, 2)
    assert 0 < row.largest < 1e-11
    assert row.at is not None


async def test_the_same_weights_on_another_grid_have_a_tolerance(tmp_path: Path) -> None:
    await talk(tmp_path, 2, turns=6)
    journal = tmp_path / "shadow.db"
    found = await replay(journal, asker=engine(grid=2 * GRID), tolerance=1e-3)
    (row,) = found.control
    assert (row.kin, row.tolerance, found.verdict) == ("same weights", 1e-3, "holds")
    assert row.within == row.answers == 6
    strict = await replay(journal, asker=engine(grid=2 * GRID), tolerance=0.0)
    assert strict.control[0].largest > 0
    assert strict.verdict == "fails"


async def test_another_model_is_no_control_and_is_compared_in_pairs(tmp_path: Path) -> None:
    await talk(tmp_path, 3)
    found = await replay(tmp_path / "shadow.db", asker=engine(intermediate=64))
    assert found.verdict == "nothing to compare"
    assert [row.kin for row in found.control] == ["another model"]
    assert found.figures is not None
    (pair,) = found.figures.pairs
    assert (pair.first, pair.second, pair.n) == ("journal", "same", found.figures.turns)
    assert pair.both + pair.only_first + pair.only_second + pair.neither == pair.n


async def test_other_words_and_fewer_classes(tmp_path: Path) -> None:
    """Each way is asked of the same turns; the same words again are the same question."""
    await talk(tmp_path, 4)
    two = ("chat", "debug")
    said = Wording(question="What kind of work does the user's last request ask for?")
    report = await replay(
        tmp_path / "shadow.db",
        Variant("same words", said),
        Variant("labels", Wording(classes={})),
        Variant("two", None, two),
        Variant("calibrated", None, calibrate=True),
        classes=two,
    )
    found = report.figures
    assert found is not None
    assert report.skipped["their own class is not among the classes"] == 12 - found.turns
    names = [one.name for one in found.variants]
    assert names == ["journal", "same", "same words", "labels", "two", "calibrated"]
    journal, same, words, labels, fewer, _ = found.variants
    assert journal.confusion == same.confusion == words.confusion
    assert {label for row in fewer.confusion.values() for label in row} <= set(two)
    assert all(one.agreement.n == found.turns for one in found.variants)
    assert set(labels.confusion) <= set(two)
    assert found.constant.label in two
    assert found.constant.agreement.hits == max(
        sum(row.values()) for row in journal.confusion.values()
    )


async def test_filters_are_those_of_the_journal_s_queries(tmp_path: Path) -> None:
    await talk(tmp_path, 5)
    journal = tmp_path / "shadow.db"
    every = await replay(journal)
    decided = await replay(journal, chosen=Filter(where=["decided=true"]))
    assert 0 < decided.asked < every.asked
    near = await replay(journal, chosen=Filter(where=["behind<=0"]))
    assert near.figures is not None
    assert [group.name for group in near.figures.variants[0].by_behind] == ["under 512"]
    one = await replay(journal, chosen=Filter(session="a", limit=2))
    assert (one.sessions, one.asked) == (1, 2)
    with pytest.raises(InvalidInputError, match="nonsense"):
        await replay(journal, chosen=Filter(where=["nonsense=1"]))


async def test_ids_that_were_replaced_since_and_erased_sessions(tmp_path: Path) -> None:
    chance = random.Random(1)
    ids = some_ids(chance, 3 * GRID)
    async with live(tmp_path) as shadow:
        await turn(shadow, "s", ids, "t1", router="chat")
        await turn(shadow, "gone", some_ids(chance, GRID), "t1", router="chat")
        await turn(shadow, "s", [*ids[:-GRID], *some_ids(chance, 9)], "t2", router="debug")
        await shadow.erase("gone")
        await turn(shadow, "gone", some_ids(chance, 2 * GRID), "t1", router="chat")
    report = await replay(tmp_path / "shadow.db")
    assert (report.verdict, report.asked, report.sessions) == ("holds", 3, 2)


async def test_a_caller_s_questions(tmp_path: Path) -> None:
    """Also calibrated ones, and ones of ids; a position has the ids of its moment."""
    chance = random.Random(2)
    ids = some_ids(chance, 3 * GRID + 5)
    async with live(tmp_path) as shadow:
        await shadow.prompt("s", ids, turn="t1")
        await shadow.end("s", "t1")
        await shadow.ask("s", "Well?", ["yes", "no"])
        await shadow.ask("s", "Well?", ["yes", "no"], calibrate=True)
        await shadow.ask(
            "s", [1, 2, 3], ["yes", "no", "so"], wait="position", position=GRID * 3 + 1
        )
        await shadow.prompt("s", [*ids[: 2 * GRID], *some_ids(chance, 9)], turn="t2")
        await shadow.end("s", "t2")
        await shadow.ask("s", "And now?", ["yes", "no"])
    with pytest.raises(NotFoundError, match="no answer to the router's question"):
        await replay(tmp_path / "shadow.db")
    report = await replay(tmp_path / "shadow.db", chosen=Filter(ordinary=True))
    assert (report.verdict, report.asked, report.figures) == ("holds", 4, None)
    assert report.control[0].equal == 4


async def test_an_answer_of_which_the_ids_cannot_be_known_is_left_out() -> None:
    """A prompt between question and answer cut below what the answer stands on; one above did
    not."""
    prompt = t.Prompt(0, Ids.of(range(20)))
    asked = [t.Question(name, "text", 20, Ids.of([1]), ("x", "y")) for name in "abc"]
    answers = [
        t.Answer(name, "x", (0.6, 0.4), position, 0, 1.0, 1.0)
        for name, position in (("a", 16), ("b", 10), ("c", 12))
    ]
    again = t.Prompt(12, Ids.of([7, 8, 9]))
    events: list[t.Event] = [t.SessionOpened(), prompt, *asked, again, *answers]
    found = [t.Entry(1.0, "s", "t", event, seq) for seq, event in enumerate(events, 1)]

    async def listed() -> AsyncIterator[t.Entry]:
        for entry in found:
            yield entry

    class Journal:
        def entries(self, **_filters: object) -> AsyncIterator[t.Entry]:
            return listed()

    wanted = [Wanted(name, "s", "t", 1.0, None, None, 0) for name in "abc"]
    skipped = Counter[str]()
    pasts = [past async for past in past_questions(Journal(), "s", wanted, [], skipped)]
    assert [(past.asked.question, list(past.base)) for past in pasts] == [
        ("b", list(range(10))),
        ("c", list(range(12))),
    ]
    assert skipped == {REPLACED: 1}


async def test_what_cannot_be_asked_is_said(tmp_path: Path) -> None:
    chance = random.Random(4)
    async with live(tmp_path) as shadow:
        await turn(shadow, "s", some_ids(chance, 2 * GRID), "t1", router="chat")
        await turn(shadow, "long", some_ids(chance, 20 * GRID), "t1", router="chat")
    journal = tmp_path / "shadow.db"
    some = await replay(journal, asker=engine(context=12 * GRID))
    assert (some.asked, some.unasked[0].code, some.unasked[0].count) == (1, "too_large", 1)
    with pytest.raises(TooLargeError, match="context"):
        await replay(journal, asker=engine(context=GRID))
    with pytest.raises(VocabularyError, match=f"id {IM_END}"):
        await replay(journal, asker=engine(vocab=IM_END))
    with pytest.raises(InvalidInputError, match="two are needed"):
        await replay(journal, Variant("x", None, ("chat", "unheard of")))
    with pytest.raises(NotFoundError, match="own class"):
        await replay(journal, classes=("debug", "code_edit"))


async def test_probabilities_that_are_not_one_a_choice_are_a_damaged_journal(
    tmp_path: Path,
) -> None:
    await talk(tmp_path, 6, turns=1)
    rewrite(tmp_path / "shadow.db", "question", lambda data: data.replace('"code_edit",', ""))
    with pytest.raises(JournalFormatError, match="2 choices and 3 probabilities"):
        await replay(tmp_path / "shadow.db")

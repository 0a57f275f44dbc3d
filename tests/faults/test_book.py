"""The judge itself: whatever is taken from, doubled in or changed in a journal, it sees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from bench.faults_book import Finding, SessionBook, TurnBook
from shadow_reader.events import types as t
from shadow_reader.events.ids import Ids


def entries(*events: tuple[str, t.Event]) -> list[t.Entry]:
    """Entries of one session, a second apart."""
    return [t.Entry(float(n), "s", turn, event, n) for n, (turn, event) in enumerate(events, 1)]


def ids(*values: int) -> Ids:
    return Ids.of(values)


JOURNAL = entries(
    ("", t.SessionOpened()),
    ("t1", t.Prompt(0, ids(1, 2, 3))),
    ("t1", t.FirstToken()),
    ("t1", t.Output(0, ids(4, 5))),
    ("t1", t.Output(2, ids(6))),
    ("t1", t.TurnEnded("stop")),
    ("t2", t.Prompt(4, ids(9))),
    ("t2", t.Question("q", "typed", 5, ids(7), ("yes", "no"))),
    ("t2", t.Answer("q", "yes", (0.75, 0.25), 5, 0, 1.0, 1.0)),
    ("t2", t.Output(0, ids(8))),
    ("t2", t.TurnEnded("superseded")),
    ("t3", t.Prompt(1, ids(2))),
)


def a_book() -> SessionBook:
    """What the client of that journal remembers: all of it was acknowledged."""
    first = TurnBook("t1", [1, 2, 3], [4, 5, 6], 3, True, True, True, "stop")
    second = TurnBook("t2", [1, 2, 3, 4, 9], [8], 1, True)
    third = TurnBook("t3", [1, 2], opened=True)
    return SessionBook("s", [first, second, third], answers={"q": ("yes", 0.75)})


def kinds(found: list[Finding]) -> set[str]:
    return {finding.kind for finding in found}


def test_a_journal_that_is_as_it_was_said() -> None:
    book = a_book()
    assert book.check(JOURNAL) == []
    read = t.Entry(20.0, "s", "t3", t.Read(0, 512, "idle", 1.0), 20)
    assert book.check([*JOURNAL, read]) == []
    assert kinds(book.check(JOURNAL)) == {"lost"}, "an entry that was there is gone"


def said(event: t.Event) -> bool:
    """Whether it was acknowledged to somebody."""
    return not isinstance(event, t.Question)


@pytest.mark.parametrize("place", [n for n, e in enumerate(JOURNAL) if said(e.event)])
def test_an_entry_that_is_missing_is_lost(place: int) -> None:
    assert "lost" in kinds(a_book().check([*JOURNAL[:place], *JOURNAL[place + 1 :]]))


@pytest.mark.parametrize("place", [n for n, e in enumerate(JOURNAL) if said(e.event)])
def test_an_entry_that_is_there_twice_is_doubled(place: int) -> None:
    again = [
        entry._replace(seq=entry.seq + (n > place))
        for n, entry in enumerate([*JOURNAL[: place + 1], *JOURNAL[place:]])
    ]
    assert "duplicated" in kinds(a_book().check(again))


def changed(event: t.Event) -> Iterator[t.Event]:
    """The event with one thing other than it was said."""
    match event:
        case t.Prompt(ids=old) | t.Output(ids=old):
            yield replace(event, ids=Ids.of([*list(old)[:-1], old[-1] + 1]))
            yield replace(event, ids=old.extend(ids(1)))
        case t.TurnEnded():
            yield t.TurnEnded("length")
        case t.Answer():
            yield replace(event, label="no")
            yield replace(event, probabilities=(0.5, 0.5))
        case _:
            pass


CHANGES = [(n, new) for n, entry in enumerate(JOURNAL) for new in changed(entry.event)]


@pytest.mark.parametrize(("place", "event"), CHANGES)
def test_an_entry_that_was_changed_is_seen(place: int, event: t.Event) -> None:
    other = JOURNAL[place]._replace(event=event)
    assert a_book().check([*JOURNAL[:place], other, *JOURNAL[place + 1 :]])


def test_what_was_not_acknowledged_may_be_there_once_or_not() -> None:
    book = a_book()
    book.turns[-1] = replace(book.turns[-1], opened=False)
    assert book.check(JOURNAL[:-2]) == []
    assert kinds(book.check(JOURNAL[:-1])) == {"strange"}, "superseded by nothing"
    assert book.check(JOURNAL) == []
    book.turns[-1].output = [5, 6, 7]
    book.turns[-1].reason = "stop"
    half = t.Entry(21.0, "s", "t3", t.Output(0, ids(5, 6)), 21)
    assert book.check([*JOURNAL, half]) == []
    ended = t.Entry(22.0, "s", "t3", t.TurnEnded("stop"), 22)
    assert book.check([*JOURNAL, half, ended]) == []


def test_what_nobody_said_is_strange() -> None:
    extra = t.Entry(21.0, "s", "t4", t.Prompt(2, ids(5)), 21)
    assert kinds(a_book().check([*JOURNAL, extra])) >= {"strange"}
    gap = t.Entry(21.0, "s", "t3", t.Output(4, ids(5)), 21)
    assert kinds(a_book().check([*JOURNAL, gap])) >= {"lost"}


def test_an_erasure_that_was_not_acknowledged_is_there_whole_or_not() -> None:
    erased = t.Entry(30.0, "s", "", t.SessionErased(12, 11), 30)
    book = a_book()
    book.erasing = True
    assert book.check(JOURNAL) == []
    assert book.check([erased]) == []
    assert not book.turns
    late = a_book()
    late.erasing = True
    assert "strange" in kinds(late.check([*JOURNAL[:1], erased]))


def test_what_was_erased_for_sure_does_not_come_back() -> None:
    book = a_book()
    book.was_erased()
    assert book.check([t.Entry(30.0, "s", "", t.SessionErased(12, 11), 30)]) == []
    assert kinds(book.check(JOURNAL)) >= {"strange"}

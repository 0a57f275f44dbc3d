"""Labels of journals: of which ids, which one counts, and what is left out."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from shadow_reader.errors import JournalFormatError, NotFoundError
from shadow_reader.events import types as t
from shadow_reader.events.ids import Ids
from shadow_reader.replay.probes.labels import (
    NO_MESSAGE,
    OTHER_CLASS,
    SHORTER,
    Found,
    Labelled,
    Wanted,
    find_labels,
    line_labels,
)
from tests.replay.probes.told import KIND, ROUTER, Talk, found_in, reading
from tests.replay.router.journals import GRID, IM_END, engine, rewrite, some_ids


class Listed:
    """A journal of these events, all of session ``s`` unless they say otherwise; each its seq."""

    def __init__(self, *events: t.Event | tuple[str, t.Event]) -> None:
        pairs = [one if isinstance(one, tuple) else ("s", one) for one in events]
        self.all = [
            t.Entry(float(seq), session, "t", event, seq)
            for seq, (session, event) in enumerate(pairs, 1)
        ]

    def entries(
        self,
        *,
        session: str | None = None,
        kinds: list[str] | None = None,
        newest_first: bool = False,
        limit: int | None = None,
    ) -> AsyncIterator[t.Entry]:
        types = {"label": t.Label, "prompt": t.Prompt}
        wanted = tuple(types[kind] for kind in kinds) if kinds else (object,)
        found = [
            entry
            for entry in (reversed(self.all) if newest_first else self.all)
            if session in (None, entry.session) and isinstance(entry.event, wanted)
        ]

        async def listed() -> AsyncIterator[t.Entry]:
            for entry in found[:limit]:
                yield entry

        return listed()


def prompt(keep: int, *ids: int, router: str | None = None, decided: bool | None = None) -> t.Event:
    return t.Prompt(keep, Ids.of(ids), router, None, decided)


def label(position: int, value: str, name: str = "kind", source: str = "") -> t.Event:
    return t.Label(name, position, value, source)


async def pairs_of(journal: Listed, wanted: Wanted = KIND) -> list[tuple[str, list[int]]]:
    found = await find_labels(journal, wanted, IM_END)
    pairs = []
    for line, expected in found.lines.items():
        again = await line_labels(journal, line, found, Counter())
        assert [one for one, _ in again] == expected
        assert all(one.position == len(base) for one, base in again)
        pairs += [(one.value, list(base)) for one, base in again]
    return pairs


async def test_the_newest_counts_of_the_same_ids_alone() -> None:
    journal = Listed(
        *(t.SessionOpened(), prompt(0, 1, 2, 3, 4), label(3, "old"), label(4, "gone")),
        *(label(3, "new"), prompt(3, 9, 9), label(4, "there"), label(3, "newest")),
    )
    assert await pairs_of(journal) == [
        ("gone", [1, 2, 3, 4]),
        ("there", [1, 2, 3, 9]),
        ("newest", [1, 2, 3]),
    ]


async def test_ids_that_come_after_a_label_change_nothing() -> None:
    journal = Listed(
        t.SessionOpened(), prompt(0, 1, 2), label(2, "x"), prompt(2, 3, 4), label(0, "y")
    )
    assert await pairs_of(journal) == [("x", [1, 2]), ("y", [])]


async def test_of_a_source_only_what_that_source_said() -> None:
    journal = Listed(
        *(t.SessionOpened(), prompt(0, 1, 2), label(2, "x", source="anna")),
        *(label(2, "y", source="ben"), label(2, "z", name="other", source="anna")),
    )
    assert await pairs_of(journal) == [("y", [1, 2])]
    assert await pairs_of(journal, replace(KIND, source="anna")) == [("x", [1, 2])]
    assert KIND.told == "labels:kind"
    assert replace(KIND, source="anna").told == "labels:kind@anna"
    assert replace(KIND, source="").told == "labels:kind@"
    with pytest.raises(NotFoundError, match=r"of source 'carl'.*kind@anna 1, kind@ben 1, other@"):
        await pairs_of(journal, replace(KIND, source="carl"))


async def test_the_router_s_classes_stand_at_the_end_of_the_last_message() -> None:
    journal = Listed(
        *(t.SessionOpened(), prompt(0, 1, IM_END, 2, IM_END, 5, 6, router="chat")),
        *(prompt(4, 7, router="debug"), prompt(5), prompt(0, 3, 3, router="chat")),
    )
    assert await pairs_of(journal, ROUTER) == [
        ("chat", [1, IM_END, 2, IM_END]),
        ("debug", [1, IM_END, 2, IM_END]),
    ]
    found = await find_labels(journal, ROUTER, IM_END)
    assert found.skipped == {NO_MESSAGE: 1}
    assert ROUTER.told == "router"


async def test_only_what_the_router_decided_on_the_turn() -> None:
    journal = Listed(
        *(t.SessionOpened(), prompt(0, 1, IM_END, router="chat", decided=True)),
        *(prompt(2, 2, IM_END, router="debug", decided=False), prompt(4, IM_END, router="other")),
    )
    assert await pairs_of(journal, Wanted(decided=True)) == [("chat", [1, IM_END])]
    assert len(await pairs_of(journal, ROUTER)) == 3


async def test_classes_and_lengths_that_are_left_out_are_counted() -> None:
    journal = Listed(
        *(t.SessionOpened(), prompt(0, *range(9))),
        *(label(n, "xyz"[n % 3]) for n in range(1, 9)),
    )
    found = await find_labels(journal, replace(KIND, classes=("x", "y"), least_ids=4), IM_END)
    assert [(one.value, one.position) for one in found.labels] == [("y", 4), ("x", 6), ("y", 7)]
    assert found.skipped == {OTHER_CLASS: 3, SHORTER: 2}
    assert sum(found.skipped.values()) + len(found.labels) == 8


async def test_times_are_those_of_the_labels() -> None:
    journal = Listed(
        t.SessionOpened(), prompt(0, 1, 2), label(1, "x"), label(2, "y"), label(1, "z")
    )
    assert await pairs_of(journal, replace(KIND, since=4.0)) == [("y", [1, 2]), ("z", [1])]
    assert await pairs_of(journal, replace(KIND, until=5.0)) == [("x", [1]), ("y", [1, 2])]


async def test_an_erased_session_has_none_and_what_comes_later_is_not_seen() -> None:
    journal = Listed(
        *(t.SessionOpened(), prompt(0, 1, 2), label(1, "x"), ("o", t.SessionOpened())),
        *(("o", prompt(0, 1)), ("o", label(1, "y")), t.SessionErased(3, 2)),
    )
    found = await find_labels(journal, KIND, IM_END)
    assert found.lines == {"o": [Labelled("o", 6, 1, "y")]}
    journal.all.append(t.Entry(9.0, "o", "", label(1, "late"), 8))
    again = await line_labels(journal, "o", found, Counter())
    assert [one.value for one, _ in again] == ["y"]


async def test_a_label_beyond_the_ids_of_its_moment_is_a_damaged_journal() -> None:
    journal = Listed(t.SessionOpened(), prompt(0, 1, 2), label(3, "x"))
    with pytest.raises(JournalFormatError, match=r"entry 3.* about 3 ids, and 2 were known"):
        await find_labels(journal, KIND, IM_END)
    with pytest.raises(JournalFormatError, match="never opened"):
        await find_labels(Listed(label(0, "x")), KIND, IM_END)


async def test_a_journal_without_what_was_asked_for_says_what_it_has() -> None:
    journal = Listed(t.SessionOpened(), prompt(0, 1), label(1, "x"), label(0, "y"))
    with pytest.raises(NotFoundError, match=r"no label 'mood' that.*source: kind@ 2") as caught:
        await find_labels(journal, Wanted(name="mood"), IM_END)
    assert caught.value.details["found"] == {"kind@": 2}
    with pytest.raises(NotFoundError, match=re.escape("of session 'other'")):
        await find_labels(journal, replace(KIND, session="other"), IM_END)
    with pytest.raises(NotFoundError, match=r"class of the router's own.*kind@ 2"):
        await find_labels(journal, ROUTER, IM_END)
    with pytest.raises(NotFoundError, match="left out: of another class: 2"):
        await find_labels(journal, replace(KIND, classes=("z",)), IM_END)
    with pytest.raises(NotFoundError, match="source: none"):
        await find_labels(Listed(), KIND, IM_END)


async def test_lines_of_a_session_belong_together(tmp_path: Path) -> None:
    chance = random.Random(3)
    own = engine()
    async with reading(tmp_path, own, branches=2, branch_min_ids=16) as shadow:
        told = Talk(shadow, own, chance)
        for session in ("s", "other"):
            await told.turn(session, some_ids(chance, 3 * GRID), router="chat")
            await told.turn(session, some_ids(chance, 2 * GRID), router="debug")
    found = await found_in(tmp_path, replace(ROUTER, session="s"))
    assert [(line, len(labels)) for line, labels in found.lines.items()] == [
        ("s", 1),
        ("s~branch1", 1),
    ]
    assert {one.session for one in found.labels} == {"s"}
    one = await found_in(tmp_path, replace(ROUTER, session="s~branch1"))
    assert list(one.lines) == ["s~branch1"]


async def test_a_journal_that_was_changed_behind_its_back(tmp_path: Path) -> None:
    own = engine()
    async with reading(tmp_path, own) as shadow:
        told = Talk(shadow, own, random.Random(4))
        await told.turn("s", some_ids(told.chance, GRID))
        await told.label("s", GRID, "x")
    rewrite(
        tmp_path / "shadow.db",
        "label",
        lambda data: data.replace(f'"position":{GRID}', '"position":9999'),
    )
    with pytest.raises(JournalFormatError, match="about 9999 ids"):
        await found_in(tmp_path, KIND)


def test_found_is_all_lines() -> None:
    found = Found(KIND, IM_END, 9, {"a": [Labelled("a", 1, 2, "x")], "b": []})
    assert found.labels == [Labelled("a", 1, 2, "x")]

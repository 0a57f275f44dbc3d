"""Entries as flat rows: the journal's columns, then the event's own fields; no value in a value.

Law: the fields of a kind are those of its event type, so a row, a query and the documented schema
cannot differ. An answer's row has its question's fields too: one line says what was asked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Final, Literal, TypeAlias, get_args, get_origin, get_type_hints

from shadow_reader.events import types as t
from shadow_reader.events.codec import KINDS, kind_of
from shadow_reader.events.ids import Ids

Row: TypeAlias = dict[str, Any]

COLUMNS: Final = ("seq", "at", "session", "turn", "kind")
ANSWER: Final = "answer"
QUESTION: Final = "question"
_JOINED_TYPES: Final = {
    "question_kind": "str or null",
    "choices": "list of str or null",
    "about": "int or null",
    "probe": "str or null",
    "probe_version": "int or null",
    "asked_at": "float or null",
    "probability": "float or null",
}
JOINED: Final = tuple(_JOINED_TYPES)
"""What an answer's row has of its question; ``probability`` is the label's."""
OPEN_QUESTIONS: Final = 100_000
"""Questions without an answer that are kept for a join, the newest: more are never open."""

_RENAMED: Final = {"kind": "question_kind"}
"""A field of an event that would hide a column of the row."""

_FIELDS: Final[dict[type[t.Event], tuple[tuple[str, str], ...]]] = {
    cls: tuple((f.name, _RENAMED.get(f.name, f.name)) for f in dataclasses.fields(cls))
    for cls in KINDS.values()
}


def entry_row(entry: t.Entry, *, with_ids: bool) -> Row:
    """An entry as one JSON object.

    Token ids become a list, or only ``{"count": n}`` when ``with_ids`` is False. A question's own
    kind is ``question_kind``, since ``kind`` is the event's.
    """
    row: Row = {
        "seq": entry.seq,
        "at": entry.at,
        "session": entry.session,
        "turn": entry.turn,
        "kind": kind_of(entry.event),
    }
    for name, shown in _FIELDS[type(entry.event)]:
        value = getattr(entry.event, name)
        if isinstance(value, Ids):
            value = value.array().tolist() if with_ids else {"count": len(value)}
        row[shown] = value
    return row


def fields_of(kinds: Sequence[str]) -> tuple[str, ...]:
    """The fields that rows of these kinds have, of all kinds where none is named; sorted behind
    the columns."""
    found: set[str] = set()
    for kind in kinds or KINDS:
        names = {shown for _, shown in _FIELDS[KINDS[kind]]}
        if "ids" in names:
            names = names - {"ids"} | {"id_count"}
        found |= names | (set(JOINED) if kind == ANSWER else set())
    return (*COLUMNS, *sorted(found - set(COLUMNS)))


class FlatRows:
    """Makes flat rows of entries that come in the journal's order; remembers open questions.

    Args:
        with_ids: ``ids`` beside ``id_count``.
    """

    def __init__(self, *, with_ids: bool = False) -> None:
        self._with_ids = with_ids
        self._asked: dict[str, t.Entry] = {}

    def knows(self, question: str) -> bool:
        """Whether this question is at hand for its answer."""
        return question in self._asked

    def remember(self, asked: t.Entry) -> None:
        """A question, for its answer."""
        assert isinstance(asked.event, t.Question)
        self._asked[asked.event.question] = asked
        if len(self._asked) > OPEN_QUESTIONS:
            del self._asked[next(iter(self._asked))]

    def row(self, entry: t.Entry) -> Row:
        """The entry's row."""
        row = entry_row(entry, with_ids=self._with_ids)
        ids = row.get("ids")
        if ids is not None:
            row["id_count"] = len(ids) if self._with_ids else row.pop("ids")["count"]
        match entry.event:
            case t.Question():
                self.remember(entry)
            case t.Answer(question=question):
                row |= _joined(self._asked.pop(question, None), entry.event)
            case t.QuestionEnded(question=question):
                self._asked.pop(question, None)
            case _:
                pass
        return row


def _joined(asked: t.Entry | None, answer: t.Answer) -> Row:
    question = asked.event if asked is not None else None
    found: Row = dict.fromkeys(JOINED)
    if isinstance(question, t.Question) and asked is not None:
        found |= {
            "question_kind": question.kind,
            "choices": question.choices,
            "about": question.about,
            "probe": question.probe,
            "probe_version": question.probe_version,
            "asked_at": asked.at,
        }
        if answer.label in question.choices:
            place = question.choices.index(answer.label)
            found["probability"] = answer.probabilities[place]
    return found


def schema() -> Mapping[str, tuple[tuple[str, str], ...]]:
    """Each kind's own fields behind the columns, with their types."""
    found = {}
    for kind, cls in KINDS.items():
        hints = get_type_hints(cls)
        rows = []
        for field in dataclasses.fields(cls):
            if field.name == "ids":
                rows.append(("id_count", "int"))
            else:
                rows.append((_RENAMED.get(field.name, field.name), _said(hints[field.name])))
        found[kind] = (*rows, *(_JOINED_TYPES.items() if kind == ANSWER else ()))
    return MappingProxyType(found)


def _said(hint: Any) -> str:
    """A field's type in words that JSON's readers know."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(args)
    if origin is tuple:
        return f"list of {_said(args[0])}"
    if origin is UnionType:
        return " or ".join(_said(one) for one in args)
    return "null" if hint is NoneType else str(hint.__name__)

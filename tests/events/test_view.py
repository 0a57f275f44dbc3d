"""The view's one shortcut is what the long way gives."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from shadow_reader.events.ids import Ids
from shadow_reader.events.view import SessionView, TurnView


def test_grown_is_replace() -> None:
    marks: dict[str, Any] = {f.name: object() for f in fields(SessionView)}
    view = SessionView(**marks)
    turn, known = TurnView("t", 1, 2.0), Ids.of([1])
    grown = view.grown(7.0, turn, known)
    assert grown == replace(view, last_at=7.0, turn=turn, known=known)

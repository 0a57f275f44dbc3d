"""Situations for the plan, with what a test does not name left ordinary."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shadow_reader.shadow.plan import Candidate, Waiting

GRID = 512


def behind(session: str, chunks: int = 10, **changes: Any) -> Candidate:
    """A session ``chunks`` chunks behind, heard of just now, served just now."""
    made = Candidate(
        session=session,
        known=chunks * GRID,
        committed=0,
        running=False,
        heard_s=1000.0,
        unserved_s=1000.0,
    )
    return replace(made, **changes)


def fresh(session: str, **changes: Any) -> Candidate:
    """A session with a pending tail alone."""
    return behind(session, known=GRID - 1, **changes)


def asks(question: str, session: str, wait: str = "fresh", asked_s: float = 1000.0) -> Waiting:
    return Waiting(question, session, "now" if wait == "now" else "fresh", asked_s)


def asks_at(question: str, session: str, position: int, **changes: Any) -> Waiting:
    """One about the first ``position`` ids."""
    return replace(Waiting(question, session, "position", 1000.0, position), **changes)

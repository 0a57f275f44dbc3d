"""Turns and ledgers for the tests of this folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from shadow_reader.replay.ledger.turn import ASSUMABLE, Turn

REFERENCE = Path(__file__).parents[3].parent / "shared" / "reference" / "ledger_sim.py"
RAW_LEDGERS = Path(__file__).parents[3].parent / "shared" / "data" / "ledgers"


def row(turn: int = 0, **fields: Any) -> dict[str, Any]:
    """A line that is fine as turn ``turn`` of session ``s``, unless ``fields`` say otherwise."""
    made: dict[str, Any] = {
        "session": "s",
        "parent": None,
        "turn": turn,
        "start_s": 100.0 + 10 * turn,
        "first_s": 101.0 + 10 * turn,
        "end_s": 105.0 + 10 * turn,
        "prompt_ids": 1000 + 500 * turn,
        "prefix_ids": 1000 + 500 * (turn - 1) if turn else 0,
        "output_ids": 100,
        "assumed": [],
    }
    return {**made, **fields}


def write_rows(path: Path, *rows: dict[str, Any]) -> Path:
    """A file of these lines, whatever they hold."""
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


_NAMES = st.text(min_size=1, max_size=6)
_IDS = st.integers(0, 10**6)
_STEPS = st.floats(0, 1e6, allow_nan=False, allow_infinity=False)


@st.composite
def ledger_turns(draw: st.DrawFn) -> list[Turn]:
    """Turns that obey every law of ledgers, sessions mixed in any way."""
    names = draw(st.lists(_NAMES, min_size=1, max_size=4, unique=True))
    parents = {
        name: draw(st.sampled_from([None, "elsewhere-parent", *names[:n]]))
        for n, name in enumerate(names)
    }
    order = draw(st.lists(st.sampled_from(names), min_size=1, max_size=12))
    last: dict[str, Turn] = {}
    turns: list[Turn] = []
    for name in order:
        before = last.get(name)
        start = (before.end_s if before else draw(_STEPS)) + draw(_STEPS)
        end = start + draw(_STEPS)
        prompt = draw(_IDS) + 1
        turn = Turn(
            session=name,
            parent=parents[name],
            turn=before.turn + 1 if before else 0,
            start_s=start,
            first_s=draw(st.one_of(st.none(), st.floats(start, end))),
            end_s=end,
            prompt_ids=prompt,
            prefix_ids=draw(st.integers(0, min(prompt, before.known_ids))) if before else 0,
            output_ids=draw(_IDS),
            assumed=tuple(draw(st.lists(st.sampled_from(ASSUMABLE), unique=True))),
        )
        last[name] = turn
        turns.append(turn)
    return turns

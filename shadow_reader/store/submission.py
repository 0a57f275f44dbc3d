"""What is handed to the journal's writer: drafts with their rows ready, or an erasure.

Law: what cannot be written is refused here, alone, and never inside a group with others' events.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, get_args

from shadow_reader.errors import InvalidInputError
from shadow_reader.events import types as t
from shadow_reader.events.codec import Row, encode

_OF_ENGINE: Final = get_args(t.EngineEvent)

ROW_BYTES: Final = 48
"""What a row costs beside its data and ids, about; for the bound on what waits."""


@dataclass(frozen=True, slots=True)
class Append:
    """Drafts to be committed together, in order; ``size`` in bytes, about."""

    drafts: tuple[t.Draft, ...]
    rows: tuple[Row, ...]
    size: int

    @classmethod
    def of(cls, drafts: Sequence[t.Draft]) -> Append:
        """Encode drafts.

        Raises:
            InvalidInputError: a time, name or value that could not be read back.
        """
        assert drafts, "an append has an event"
        rows = []
        size = len(drafts) * ROW_BYTES
        checked = None
        for draft in drafts:
            event = draft.event
            envelope = draft.at, draft.session, draft.turn, type(event)
            if envelope != checked:
                assert type(event) is not t.SessionErased, "a session is erased by erase()"
                check_envelope(draft)
                checked = envelope
            row = encode(event)
            size += len(row.data) + len(row.ids or b"")
            rows.append(row)
        return cls(tuple(drafts), tuple(rows), size)


@dataclass(frozen=True, slots=True)
class Erasure:
    """Every entry of the drafts' sessions goes; the drafts take their place, with their counts."""

    drafts: tuple[t.Draft, ...]

    @classmethod
    def of(cls, drafts: tuple[t.Draft, ...]) -> Erasure:
        """Check the drafts: SessionErased, each of another session."""
        assert drafts, "an erasure has a session"
        assert len({draft.session for draft in drafts}) == len(drafts), "a session is erased once"
        for draft in drafts:
            assert isinstance(draft.event, t.SessionErased), (
                "only SessionErased takes a session's place"
            )
            check_envelope(draft)
        return cls(drafts)

    @property
    def size(self) -> int:
        """Bytes of its rows, about."""
        return ROW_BYTES * len(self.drafts)


Submission: TypeAlias = Append | Erasure
Result: TypeAlias = range | tuple[t.Entry, ...]
"""What became of it: the seqs of an append's entries, or the entries that an erasure left."""


def check_envelope(draft: t.Draft) -> None:
    """The time is finite, the names are text; engine events, and only they, have no session.

    Raises:
        InvalidInputError: names the field and what was found.
    """
    of_engine = type(draft.event) in _OF_ENGINE
    assert of_engine == (not draft.session), "engine events, and only they, have no session"
    if not math.isfinite(draft.at):
        raise InvalidInputError(f"at must be finite, not {draft.at}", field="at")
    for field, value in (("session", draft.session), ("turn", draft.turn)):
        if not value.isascii():
            _check_text(value, field)


def row_size(row: Row) -> int:
    """Bytes of an event's row, about."""
    return ROW_BYTES + len(row.data) + len(row.ids or b"")


def _check_text(value: str, field: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(
            f"{field} is not Unicode text: {value!r:.80}", field=field
        ) from error

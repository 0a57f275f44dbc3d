"""Ids to text as they come, in pieces that hold whole characters.

Law: a character whose ids have not all come is held back, so no piece holds a broken one; what is
never completed is left out, and so are special ids. All pieces together are the text of all ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from shadow_reader.shadow.vocabulary import REPLACEMENT, Vocabulary

LONGEST_IDS: Final = 4
"""Ids that one character may be split into: UTF-8 has four bytes at most."""


@dataclass(slots=True)
class Pieces:
    """Turns one stream of ids into text."""

    vocabulary: Vocabulary
    _pending: list[int] = field(default_factory=list)
    _special: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        self._special = frozenset(self.vocabulary.added.values())

    def push(self, ids: Sequence[int]) -> str:
        """The text that is whole by now, and was not given before."""
        self._pending += [one for one in ids if one not in self._special]
        most = len(self._pending)
        for kept in range(min(LONGEST_IDS, most + 1)):
            text = self.vocabulary.decode(self._pending[: most - kept])
            if not text.endswith(REPLACEMENT):
                self._pending = self._pending[most - kept :]
                return text.replace(REPLACEMENT, "")
        # No character is that long: what is pending begins with bytes that are none.
        self._pending = self._pending[most - LONGEST_IDS + 1 :]
        return text.replace(REPLACEMENT, "")

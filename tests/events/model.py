"""A session in plain lists: what the messages mean, said a second time and without sharing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from shadow_reader.errors import ConflictError, InvalidInputError, NotFoundError, ShadowError
from shadow_reader.errors import TooLargeError as TooLarge
from shadow_reader.events.view import MAX_CHECKPOINTS, SessionView

CONTEXT_IDS: Final = 40


def common_prefix(one: list[int], two: list[int]) -> int:
    """How many leading ids agree, one by one."""
    agree = 0
    while agree < min(len(one), len(two)) and one[agree] == two[agree]:
        agree += 1
    return agree


@dataclass
class Model:
    """One session. Each message says which error it expects, or changes the lists."""

    opened: bool = False
    known: list[int] = field(default_factory=list)
    turns: list[str] = field(default_factory=list)
    prompt_length: int = 0
    reason: str | None = None
    decoding: bool = False
    stored_ids: int = 0
    checkpoints: dict[int, str] = field(default_factory=dict)

    @property
    def output(self) -> list[int]:
        """Output ids of the last turn."""
        return self.known[self.prompt_length :]

    def prompt(self, turn: str, keep: int | None, ids: list[int]) -> type[ShadowError] | None:
        """A prompt, by its meaning: the whole list that the big model was served."""
        if keep is not None and keep > len(self.known):
            return ConflictError
        whole = self.known[: keep or 0] + ids
        if len(whole) > CONTEXT_IDS:
            return TooLarge
        if not whole:
            return InvalidInputError
        if turn in self.turns:
            again = turn == self.turns[-1] and whole == self.known[: self.prompt_length]
            return None if again else ConflictError
        agree = common_prefix(self.known, whole)
        self.checkpoints = {at: d for at, d in self.checkpoints.items() if at <= agree}
        self.stored_ids += len(whole) - agree
        self.opened = True
        self.known, self.prompt_length = whole, len(whole)
        self.turns.append(turn)
        self.reason, self.decoding = None, False
        return None

    def first_token(self, turn: str) -> type[ShadowError] | None:
        """Prefill is over."""
        if wrong := self._wrong_turn(turn):
            return wrong
        if not self.decoding and self.reason is not None:
            return ConflictError
        self.decoding = True
        return None

    def produced(self, turn: str, offset: int, ids: list[int]) -> type[ShadowError] | None:
        """Output ids: they agree with what is known, and lengthen it."""
        if wrong := self._wrong_turn(turn):
            return wrong
        if offset > len(self.output):
            return ConflictError
        overlap = self.output[offset : offset + len(ids)]
        if overlap != ids[: len(overlap)]:
            return ConflictError
        new = ids[len(overlap) :]
        if not new:
            return None
        if self.reason is not None:
            return ConflictError
        if len(self.known) + len(new) > CONTEXT_IDS:
            return TooLarge
        self.known = self.known + new
        self.stored_ids += len(new)
        self.decoding = True
        return None

    def end(self, turn: str, reason: str) -> type[ShadowError] | None:
        """No more output comes."""
        if wrong := self._wrong_turn(turn):
            return wrong
        if self.reason not in (None, reason):
            return ConflictError
        self.reason = reason
        return None

    def checkpoint(self, position: int, digest: str) -> None:
        """The state was copied aside; only the last ones are remembered."""
        self.checkpoints[position] = digest
        for gone in sorted(self.checkpoints)[:-MAX_CHECKPOINTS]:
            del self.checkpoints[gone]

    def assert_is(self, view: SessionView | None) -> None:
        """The view says the same."""
        if not self.opened:
            assert view is None
            return
        assert view is not None
        assert list(view.known) == self.known
        assert view.output_length == len(self.output)
        assert view.prompt_length == self.prompt_length
        assert view.turns == len(self.turns)
        assert view.turn is not None
        assert [*view.past_turns, view.turn.turn] == self.turns
        assert view.turn.reason == self.reason
        assert view.running == (self.reason is None)
        assert (view.turn.first_token_at is not None) == self.decoding
        assert {c.position: c.digest for c in view.checkpoints} == self.checkpoints

    def _wrong_turn(self, turn: str) -> type[ShadowError] | None:
        if not self.opened or turn not in self.turns:
            return NotFoundError
        return None if turn == self.turns[-1] else ConflictError

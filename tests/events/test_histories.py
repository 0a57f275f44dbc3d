"""Random histories, decided and folded, against the same history in plain lists.

Also the laws that only a whole history shows: decisions refuse or change what they mean to, every
message may be sent again, the journal's rows give the same view, n ids cost n ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shadow_reader.errors import ShadowError
from shadow_reader.events import types as t
from shadow_reader.events.codec import Row, decode, encode
from shadow_reader.events.decide import (
    Limits,
    decide_end,
    decide_first_token,
    decide_output,
    decide_prompt,
)
from shadow_reader.events.fold import fold, fold_all
from shadow_reader.events.ids import Ids
from shadow_reader.events.view import SessionView
from tests.events.model import CONTEXT_IDS, Model

LIMITS = Limits(vocabulary=3, context_ids=CONTEXT_IDS, question_ids=8, open_questions=2)

some_ids = st.lists(st.integers(0, 2), max_size=12)
turns = st.sampled_from(["t1", "t2", "t3", "t4", "t5"])
reasons: st.SearchStrategy[t.EndReason] = st.sampled_from(["stop", "length", "abort"])


class History(RuleBasedStateMachine):
    """One session, told twice."""

    def __init__(self) -> None:
        super().__init__()
        self.view: SessionView | None = None
        self.model = Model()
        self.rows: list[tuple[t.Draft, Row]] = []
        self.at = 1000.0
        self.stored = 0

    @initialize(ids=some_ids.filter(bool))
    def begin(self, ids: list[int]) -> None:
        self.whole_prompt("t0", ids)

    @rule(turn=turns, ids=some_ids)
    def whole_prompt(self, turn: str, ids: list[int]) -> None:
        self._prompt(turn, None, ids)

    @rule(turn=turns, data=st.data(), ids=some_ids)
    def next_prompt(self, turn: str, data: st.DataObject, ids: list[int]) -> None:
        agreeing = data.draw(st.integers(0, len(self.model.known)))
        self._prompt(turn, None, self.model.known[:agreeing] + ids)

    @rule(turn=turns, keep=st.integers(0, CONTEXT_IDS + 1), ids=some_ids)
    def kept_prompt(self, turn: str, keep: int, ids: list[int]) -> None:
        self._prompt(turn, keep, ids)

    @rule(turn=turns)
    def first_token(self, turn: str) -> None:
        self._say(
            turn,
            self.model.first_token(turn),
            lambda: decide_first_token(self.view, turn=turn),
        )

    @rule(data=st.data(), ids=some_ids)
    def more_output(self, data: st.DataObject, ids: list[int]) -> None:
        offset = data.draw(st.integers(0, len(self.model.output)))
        known = self.model.output[offset:]
        self._output(self.model.turns[-1], offset, known[: data.draw(st.integers(0, 12))] + ids)

    @rule(turn=turns, offset=st.integers(0, 12), ids=some_ids)
    def any_output(self, turn: str, offset: int, ids: list[int]) -> None:
        self._output(turn, offset, ids)

    @rule(turn=turns, reason=reasons)
    def end(self, turn: str, reason: t.EndReason) -> None:
        self._say(
            turn,
            self.model.end(turn, reason),
            lambda: decide_end(self.view, turn=turn, reason=reason, produced=None),
        )

    @precondition(lambda self: self.model.opened)
    @rule(data=st.data(), digest=st.text("ab", min_size=1, max_size=2))
    def checkpoint(self, data: st.DataObject, digest: str) -> None:
        position = data.draw(st.integers(0, len(self.model.known)))
        self.model.checkpoint(position, digest)
        self._journal("", (t.Checkpoint(position, digest, "e"),))

    @invariant()
    def the_view_is_the_model(self) -> None:
        self.model.assert_is(self.view)

    @invariant()
    def the_journal_s_rows_fold_to_the_view(self) -> None:
        read = [t.Draft(d.at, d.session, d.turn, decode(row)) for d, row in self.rows]
        assert fold_all(None, read) == self.view

    @invariant()
    def ids_are_stored_once(self) -> None:
        assert self.stored == self.model.stored_ids

    def _prompt(self, turn: str, keep: int | None, ids: list[int]) -> None:
        def decide() -> Sequence[t.SessionEvent]:
            return decide_prompt(
                self.view, turn=turn, keep=keep, ids=Ids.of(ids), router=None, limits=LIMITS
            )

        self._say(turn, self.model.prompt(turn, keep, ids), decide)

    def _output(self, turn: str, offset: int, ids: list[int]) -> None:
        def decide() -> Sequence[t.SessionEvent]:
            return decide_output(
                self.view, turn=turn, offset=offset, ids=Ids.of(ids), limits=LIMITS
            )

        self._say(turn, self.model.produced(turn, offset, ids), decide)

    def _say(
        self,
        turn: str,
        expected: type[ShadowError] | None,
        decide: Callable[[], Sequence[t.SessionEvent]],
    ) -> None:
        if expected is not None:
            with pytest.raises(expected):
                decide()
            return
        self._journal(turn, decide())
        assert not decide(), "said again it means nothing new"

    def _journal(self, turn: str, events: Sequence[t.SessionEvent]) -> None:
        for event in events:
            self.at += 1
            ends_the_last = isinstance(event, t.TurnEnded) and event.reason == "superseded"
            named = self.model.turns[-2] if ends_the_last else turn
            draft = t.Draft(self.at, "s", named, event)
            self.view = fold(self.view, draft)
            assert self.view is not None
            assert self.view.last_at == self.at
            self.rows.append((draft, encode(event)))
            self.stored += len(event.ids) if isinstance(event, t.Prompt | t.Output) else 0


History.TestCase.settings = settings(max_examples=settings().max_examples // 3)
TestHistories = History.TestCase

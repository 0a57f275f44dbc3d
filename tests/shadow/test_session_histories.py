"""Any history of messages and failing commits: nothing is lost and nothing invented."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadow_reader.errors import ConflictError, InvalidInputError, ShadowError, TooLargeError
from shadow_reader.events import types as t
from shadow_reader.events.fold import fold
from shadow_reader.events.view import SessionView
from shadow_reader.shadow.sessions import Accepted
from shadow_reader.store.submission import Erasure, Result, Submission
from tests.fake_journal import FlakyJournal, all_entries, script
from tests.fakes import CONTEXT_IDS, EFFORT, VOCABULARY, run_virtual, settle, steps, virtual
from tests.shadow.house import House

SESSIONS = ("a", "b")


MOVES = st.tuples(
    st.sampled_from(["prompt", "again", "output", "overlap", "end", "ask", "answer", "erase"]),
    st.sampled_from(SESSIONS),
    st.integers(0, 7),  # what exactly
    st.integers(0, 5),  # how far the others get meanwhile
    st.booleans(),  # whether the sender is cancelled half-way
)


@dataclass
class Traffic:
    """Random senders, and what they were told."""

    house: House
    acknowledged: list[tuple[Accepted, int]] = field(default_factory=list)
    turns: dict[str, int] = field(default_factory=dict)
    questions: list[tuple[str, str]] = field(default_factory=list)

    async def send(self, kind: str, session: str, pick: int) -> None:
        house, turn = self.house, f"t{self.turns.get(session, 0)}"
        live = house.sessions.peek(session)
        view = live.tentative if live else None
        known = list(view.known) if view else []
        output = view.output_length if view else 0
        call: Awaitable[Accepted]
        if kind == "prompt":
            self.turns[session] = self.turns.get(session, 0) + 1
            turn = f"t{self.turns[session]}"
            keep = min(len(known), 3 * pick)
            call = house.prompt(session, [*known[:keep], 100 + pick], turn=turn)
        elif kind == "again" and view and view.turn:
            prompt = known[: view.prompt_length]
            call = house.prompt(session, prompt, turn=view.turn.turn)
        elif kind == "output":
            call = house.output(session, turn, output, [pick] * (1 + pick))
        elif kind == "overlap" and view:
            start = max(0, output - pick)
            ids = known[view.prompt_length + start :] if view.turn else []
            call = house.output(session, turn, start, [*ids, pick])
        elif kind == "ask":
            self.questions.append((session, f"q{len(self.questions)}"))
            call = house.ask(*self.questions[-1])
        elif kind == "answer" and self.questions:
            name, question = self.questions[pick % len(self.questions)]
            await house.sessions.record(name, t.QuestionEnded(question, "cancelled"))
            return
        elif kind == "erase":
            await house.sessions.erase(session)
            return
        else:
            call = house.end(session, turn)
        accepted = await call
        self.acknowledged.append((accepted, house.journal.stats().last_seq))


@settings(max_examples=80 * EFFORT)
@given(
    moves=st.lists(MOVES, max_size=30),
    failures=st.lists(st.sampled_from([False, False, True]), max_size=40),
    commit_s=st.sampled_from([0.0, 0.0, 0.001]),
    pending_limit=st.sampled_from([1, 2, 8192]),
)
def test_no_history_of_failing_commits_loses_or_invents_anything(
    moves: list[tuple[str, str, int, int, bool]],
    failures: list[bool],
    commit_s: float,
    pending_limit: int,
) -> None:
    async def play() -> None:
        journal = WholeJournal(pending_limit=pending_limit, commit_s=commit_s)
        house = House(journal, capacity=3)
        journal.fails = script(failures)
        traffic = Traffic(house)
        senders = []
        for kind, session, pick, pace, cancel in moves:
            sender = asyncio.create_task(traffic.send(kind, session, pick))
            senders.append(sender)
            await steps(pace)
            if cancel:
                sender.cancel()
        for result in await settle(*senders):
            assert result is None or isinstance(result, ShadowError | asyncio.CancelledError), repr(
                result
            )
        await house.check_views()
        for accepted, last_seq in traffic.acknowledged:
            journal.check(accepted, last_seq)
        journal.fails = script([])
        # Whatever happened: every open question can still be ended, and every session goes on.
        for session in SESSIONS:
            await house.prompt(session, [1, 2, 3], turn="last")
        await house.check_views()

    run_virtual(play())


def committed(group: Sequence[Submission], results: Sequence[Result]) -> Iterator[t.Entry]:
    """What a group left in the journal, erased since or not."""
    for item, result in zip(group, results, strict=True):
        if isinstance(item, Erasure):
            assert isinstance(result, tuple)
            yield from result
        else:
            assert isinstance(result, range)
            for draft, seq in zip(item.drafts, result, strict=True):
                yield t.Entry(*draft, seq)


class WholeJournal(FlakyJournal):
    """Remembers every commit, erased or not, to compare acknowledgements with."""

    def __init__(self, *, pending_limit: int, commit_s: float) -> None:
        super().__init__(pending_limit=pending_limit, commit_s=commit_s)
        self.views: dict[str, list[tuple[int, SessionView | None]]] = {}

    async def _commit(self, group: Sequence[Submission]) -> Sequence[Result]:
        results = await super()._commit(group)
        for entry in committed(group, results):
            past = self.views.setdefault(entry.session, [(0, None)])
            past.append((entry.seq, fold(past[-1][1], entry)))
        return results

    def check(self, accepted: Accepted, last_seq: int) -> None:
        """What was acknowledged had been committed when it was."""
        past = self.views[accepted.session]
        if accepted.seq is not None:
            assert accepted.seq <= last_seq
            view = dict(past)[accepted.seq]
            assert view is not None
            assert (accepted.known, accepted.output) == (len(view.known), view.output_length)
        else:
            assert any(
                view is not None
                and (len(view.known), view.output_length) == (accepted.known, accepted.output)
                for seq, view in past
                if seq <= last_seq
            )


@virtual
async def test_bad_names_and_ids_change_nothing() -> None:
    house = House()
    bad: list[Callable[[], Awaitable[Any]]] = [
        lambda: house.prompt("", [1]),
        lambda: house.prompt("s" * 201, [1]),
        lambda: house.prompt("s\n", [1]),
        lambda: house.prompt("s", [1], turn=""),
        lambda: house.prompt("s", []),
        lambda: house.prompt("s", [VOCABULARY]),
        lambda: house.prompt("s", [-1]),
        lambda: house.prompt("s", [True]),
        lambda: house.prompt("s", [1], keep=-1),
        lambda: house.prompt("s", "text"),  # type: ignore[arg-type]  # that is the test
    ]
    for call in bad:
        with pytest.raises(InvalidInputError):
            await call()
    with pytest.raises(TooLargeError):
        await house.prompt("s", [1] * (CONTEXT_IDS + 1))
    with pytest.raises(ConflictError):
        await house.prompt("s", [1], keep=1)
    assert await all_entries(house.journal) == []
    assert all(live.tentative is None for live in house.sessions.live())

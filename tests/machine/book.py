"""What clients said and what they were told, held against all that the journal has.

Laws: what was acknowledged is there once, with its ids, in its order; what was not may be there
once or not at all; nothing else is there. It knows nothing of how a session's talk is kept: a
line of talk is whatever goes by the session's name or by that name with a branch's number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from shadow_reader.events import types as t
from shadow_reader.events.branches import split_name
from shadow_reader.shadow.questions import Reply
from tests.machine.oracle import Oracle

Wait: TypeAlias = Literal["fresh", "now"]


@dataclass
class Turn:
    """One turn.

    Attributes:
        prompt, output: every id that was sent. heard: output ids acknowledged.
        opened, ended: whether prompt and end were acknowledged.
        reason: of the end that was sent; None: none was.
        refused: it was told that it has ended: what was sent after that is not there.
        said_s: when something of it was last taken, monotonic.
    """

    turn: str
    prompt: list[int]
    output: list[int] = field(default_factory=list)
    heard: int = 0
    opened: bool = False
    ended: bool = False
    reason: str | None = None
    refused: bool = False
    said_s: float = 0.0

    @property
    def over(self) -> bool:
        """Whether its client has nothing more to say."""
        return self.reason is not None or self.refused


@dataclass
class Talk:
    """One session since it was last erased.

    Attributes:
        replies: answers that somebody got.
        erasing: an erasure is on its way. erased: it is gone, for sure.
    """

    session: str
    turns: list[Turn] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    erasing: bool = False
    erased: bool = False

    @property
    def known(self) -> list[int]:
        """All ids sent of the last turn."""
        return self.turns[-1].prompt + self.turns[-1].output if self.turns else []

    @property
    def last(self) -> Turn | None:
        """The turn that began last."""
        return self.turns[-1] if self.turns else None

    def everything(self) -> Iterable[Sequence[int]]:
        """All ids ever sent."""
        for turn in self.turns:
            yield turn.prompt + turn.output

    def was_erased(self) -> None:
        """It is gone; what is said from now on is another session's."""
        self.turns.clear()
        self.replies.clear()
        self.erasing, self.erased = False, True


@dataclass
class _Line:
    """One line of talk as the journal tells it."""

    known: list[int] = field(default_factory=list)
    opened: int = 0
    running: str = ""


@dataclass
class Told:
    """A session as the journal tells it."""

    session: str
    lines: dict[str, _Line] = field(default_factory=dict)
    prompts: dict[str, list[int]] = field(default_factory=dict)
    outputs: dict[str, list[int]] = field(default_factory=dict)
    ends: dict[str, list[str]] = field(default_factory=dict)
    questions: dict[str, t.Question] = field(default_factory=dict)
    question_ends: Counter[str] = field(default_factory=Counter)
    answers: dict[str, t.Answer] = field(default_factory=dict)
    versions: dict[str, list[list[int]]] = field(default_factory=dict)
    erasures: int = 0

    def take(self, entry: t.Entry, oracle: Oracle, letters: Sequence[int]) -> None:
        """The next entry of the session, on any of its lines."""
        line = self.lines.setdefault(entry.session, _Line())
        versions = self.versions.setdefault(entry.session, [])
        match entry.event:
            case t.SessionErased():
                assert not versions, f"{entry.session}: entries from before its erasure"
                self.erasures += 1
            case t.SessionOpened():
                line.opened += 1
                assert line.opened == 1, f"{entry.session} was opened twice"
            case t.Prompt(keep=keep, ids=ids):
                assert entry.turn not in self.prompts, f"turn {entry.turn}: its prompt is doubled"
                assert line.opened == 1, f"{entry.session} was never opened"
                assert not line.running, f"turn {line.running} runs when {entry.turn} begins"
                assert keep <= len(line.known)
                line.known = [*line.known[:keep], *ids]
                line.running = entry.turn
                self.prompts[entry.turn] = line.known
            case t.Output(offset=offset, ids=ids):
                output = self.outputs.setdefault(entry.turn, [])
                assert line.running == entry.turn, f"output of {entry.turn}, which does not run"
                assert offset == len(output), f"turn {entry.turn}: {offset} after {len(output)}"
                output += ids
                line.known = [*line.known, *ids]
            case t.TurnEnded(reason=reason):
                assert line.running == entry.turn, f"the end of {entry.turn}, which does not run"
                self.ends.setdefault(entry.turn, []).append(reason)
                line.running = ""
            case t.Checkpoint(position=position, digest=digest):
                assert digest == oracle.digest(line.known[:position]), f"law 2: {entry}"
            case _:
                self._question(entry, oracle, letters)
        if line.known and (not versions or versions[-1] is not line.known):
            versions.append(line.known)

    def _question(self, entry: t.Entry, oracle: Oracle, letters: Sequence[int]) -> None:
        match entry.event:
            case t.Question(question=question) as asked:
                assert question not in self.questions, f"question {question} is doubled"
                self.questions[question] = asked
            case t.Answer(question=question) as answer:
                self.question_ends[question] += 1
                self.answers[question] = answer
                self._exact(entry.session, answer, oracle, letters)
            case t.QuestionEnded(question=question):
                self.question_ends[question] += 1
            case _:
                pass

    def _exact(self, line: str, answer: t.Answer, oracle: Oracle, letters: Sequence[int]) -> None:
        """An answer is what a fresh prefill of some version of the known ids gives."""
        ids = list(self.questions[answer.question].ids)
        versions = [known for known in self.versions[line] if len(known) >= answer.position]
        tried = set[tuple[int, ...]]()
        for known in reversed(versions):
            below = tuple(known[: answer.position])
            if below not in tried:
                tried.add(below)
                if oracle.odds(below, ids, letters) == answer.probabilities:
                    return
        raise AssertionError(f"law 2: {answer} is the answer to no ids that were known")


class Book:
    """All sessions. ``letters``: of the choices that are always given."""

    def __init__(self, names: Sequence[str], oracle: Oracle, letters: Sequence[int]) -> None:
        self.talks = {name: Talk(name) for name in names}
        self._oracle = oracle
        self._letters = letters

    def check(self, entries: Sequence[t.Entry], *, adopt: bool) -> dict[str, _Line]:
        """Everything is as it was said; the lines of talk by their names.

        Args:
            adopt: the process was killed: what was not acknowledged and is there, is so from now
                on; what is not there, never was.
        """
        told = {name: Told(name) for name in self.talks}
        for before, entry in zip([None, *entries], entries, strict=False):
            assert before is None or before.seq < entry.seq
            name = split_name(entry.session)[0]
            if name:
                told[name].take(entry, self._oracle, self._letters)
        for name, talk in self.talks.items():
            if adopt:
                _adopt(talk, told[name])
            _compare(talk, told[name])
        return {line: found for one in told.values() for line, found in one.lines.items()}


def _adopt(talk: Talk, told: Told) -> None:
    if talk.erasing and not told.prompts:
        talk.was_erased()
    talk.erasing = False
    talk.turns = [turn for turn in talk.turns if turn.opened or turn.turn in told.prompts]
    for turn in talk.turns:
        turn.opened = True
        found = told.outputs.get(turn.turn, [])
        if found == turn.output[: len(found)] and len(found) >= turn.heard:
            turn.output, turn.heard = list(found), len(found)
        ends = told.ends.get(turn.turn, [])
        if not turn.ended:
            turn.reason = turn.reason if ends == [turn.reason] else None
        turn.ended = turn.ended or bool(ends)
        turn.refused = bool(ends)


def _compare(talk: Talk, told: Told) -> None:
    where = f"session {talk.session}"
    sent = {turn.turn: turn for turn in talk.turns}
    found = list(told.prompts)
    assert found == [turn for turn in sent if turn in told.prompts], f"{where}: {found}"
    assert (told.erasures > 0) == talk.erased, f"{where}: {told.erasures} erasures"
    for turn in talk.turns:
        what = f"{where}, turn {turn.turn}"
        if turn.turn not in told.prompts:
            assert not turn.opened, f"{what} is lost"
            continue
        assert told.prompts[turn.turn] == turn.prompt, f"{what} has another prompt"
        output, ends = told.outputs.get(turn.turn, []), told.ends.get(turn.turn, [])
        assert output == turn.output[: len(output)], f"{what} has other output"
        assert len(output) >= turn.heard, f"{what}: {len(output)} of {turn.heard} ids are there"
        assert len(ends) <= 1, f"{what} ended {ends}"
        if turn.ended and turn.reason is not None:
            assert ends == [turn.reason], f"{what} ended {ends}"
        assert set(ends) <= {turn.reason, "superseded", "timeout"}, f"{what} ended {ends}"
    assert max(told.question_ends.values(), default=0) <= 1, f"{where}: {told.question_ends}"
    assert told.question_ends.keys() <= told.questions.keys()
    for reply in talk.replies:
        answer = told.answers.get(reply.question)
        assert answer is not None, f"{where}: the answer to {reply.question} is lost"
        assert answer.probabilities == tuple(reply.probabilities.values())
        assert (answer.label, answer.position) == (reply.label, reply.position)

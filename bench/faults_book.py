"""What a client sent and what was acknowledged, held against what the journal has in the end.

Laws: what was acknowledged is in the journal once, with its ids, in its order. What was sent and
not acknowledged may be there once or not at all. Nothing else is there, and what was there at an
earlier look is there at every later one, unless its session was erased. Pure: no server, no file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from shadow_reader.events import types as t

Kind: TypeAlias = Literal["lost", "duplicated", "strange"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that must not be. ``strange``: the journal says what nobody said."""

    kind: Kind
    session: str
    what: str


@dataclass(slots=True)
class TurnBook:
    """One turn: what was sent of it, and how much of that was acknowledged.

    Attributes:
        prompt, output: all ids ever sent. heard: output ids acknowledged.
        opened, first, ended: whether prompt, first token, end were acknowledged.
        reason: of the end that was sent; None: none was.
    """

    turn: str
    prompt: list[int]
    output: list[int] = field(default_factory=list)
    heard: int = 0
    opened: bool = False
    first: bool = False
    ended: bool = False
    reason: str | None = None


@dataclass(slots=True)
class SessionBook:
    """One session since it was last erased.

    Attributes:
        erasing: an erasure was sent and not acknowledged.
        erased: how often it was erased for sure.
        answers: acknowledged ones: question id -> (label, its probability).
    """

    session: str
    turns: list[TurnBook] = field(default_factory=list)
    erasing: bool = False
    erased: int = 0
    answers: dict[str, tuple[str, float]] = field(default_factory=dict)
    _seen: list[int] = field(default_factory=list)

    @property
    def known(self) -> list[int]:
        """All ids sent of the last turn."""
        return self.turns[-1].prompt + self.turns[-1].output if self.turns else []

    def was_erased(self) -> None:
        """An erasure was acknowledged, or is in the journal."""
        self.turns.clear()
        self.answers.clear()
        self._seen.clear()
        self.erasing = False
        self.erased += 1

    def check(self, entries: Sequence[t.Entry]) -> list[Finding]:
        """Compare with all that the journal has of the session, on all of its lines, by seq."""
        found = _Found(self.session)
        since = []
        for line in {entry.session: None for entry in entries}:
            of_line = [entry for entry in entries if entry.session == line]
            erasures = [i for i, e in enumerate(of_line) if isinstance(e.event, t.SessionErased)]
            since += of_line[erasures[-1] + 1 :] if erasures else of_line
            if erasures and erasures[-1] > 0:
                found.say("strange", f"there are entries of {line} from before the erasure")
        since.sort(key=lambda entry: entry.seq)
        if self.erasing and not any(isinstance(e.event, t.Prompt) for e in since):
            self.was_erased()
        for entry in since:
            found.take(entry)
        found.compare_turns(self.turns)
        found.compare_answers(self.answers)
        now = [hash((e.seq, e.at, e.turn, e.event)) for e in since]
        if now[: len(self._seen)] != self._seen:
            found.say("lost", f"{len(self._seen)} earlier entries are not as they were")
        self._seen = now
        return found.findings


@dataclass(slots=True)
class _FoundTurn:
    """One turn as the journal tells it."""

    line: str
    prompt: list[int]
    output: list[int] = field(default_factory=list)
    firsts: int = 0
    ends: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Found:
    """A session as the journal tells it."""

    session: str
    findings: list[Finding] = field(default_factory=list)
    turns: dict[str, _FoundTurn] = field(default_factory=dict)
    answers: dict[str, list[t.Answer]] = field(default_factory=dict)
    ends: Counter[str] = field(default_factory=Counter)
    known: dict[str, list[int]] = field(default_factory=dict)
    opened: Counter[str] = field(default_factory=Counter)
    last_seq: int = 0

    def say(self, kind: Kind, what: str) -> None:
        """Note a finding."""
        self.findings.append(Finding(kind, self.session, what))

    def take(self, entry: t.Entry) -> None:
        """The next entry."""
        if entry.seq <= self.last_seq:
            self.say("duplicated", f"seq {entry.seq} follows {self.last_seq}")
        self.last_seq = entry.seq
        match entry.event:
            case t.SessionOpened():
                self.opened[entry.session] += 1
            case t.Prompt(keep=keep, ids=ids):
                self._prompt(entry, keep, list(ids))
            case t.FirstToken():
                self._turn(entry).firsts += 1
            case t.Output(offset=offset, ids=ids):
                self._output(entry, offset, list(ids))
            case t.TurnEnded(reason=reason):
                self._turn(entry).ends.append(reason)
            case t.Answer(question=question) as answer:
                self.answers.setdefault(question, []).append(answer)
                self.ends[question] += 1
            case t.QuestionEnded(question=question):
                self.ends[question] += 1
            case _:
                pass

    def compare_turns(self, sent: Sequence[TurnBook]) -> None:
        """Every turn that was opened is there once, in order, and no other."""
        for line in self.opened.keys() | {turn.line for turn in self.turns.values()}:
            if (count := self.opened[line]) != 1:
                self.say("duplicated" if count > 1 else "lost", f"{line} opened {count} times")
        names = list(self.turns)
        last_of = {turn.line: name for name, turn in self.turns.items()}
        for number, book in enumerate(sent):
            if number >= len(names):
                if book.opened:
                    self.say("lost", f"turn {book.turn}")
            elif names[number] != book.turn:
                self.say("strange", f"turn {names[number]} where {book.turn} was sent")
                return
            else:
                turn = self.turns[book.turn]
                last = last_of[turn.line] == book.turn
                for kind, what in _differences(book, turn, last=last):
                    self.say(kind, f"turn {book.turn}: {what}")
        for name in names[len(sent) :]:
            self.say("strange", f"turn {name} was never sent")

    def compare_answers(self, told: dict[str, tuple[str, float]]) -> None:
        """Every answer that somebody got is there once, and no question ends twice."""
        for question, count in self.ends.items():
            if count > 1:
                self.say("duplicated", f"question {question} ended {count} times")
        for question, (label, probability) in told.items():
            answers = self.answers.get(question)
            if not answers:
                self.say("lost", f"the answer to {question}")
            elif answers[0].label != label or probability not in answers[0].probabilities:
                self.say("strange", f"the answer to {question} is {answers[0]}, {label} was told")

    def _turn(self, entry: t.Entry) -> _FoundTurn:
        name = entry.turn
        if name not in self.turns:
            self.say("lost", f"turn {name!r} has no prompt")
            self.turns[name] = _FoundTurn(entry.session, [])
        elif self.turns[name].line != entry.session:
            self.say("strange", f"turn {name!r} is on two lines")
        return self.turns[name]

    def _prompt(self, entry: t.Entry, keep: int, ids: list[int]) -> None:
        turn, known = entry.turn, self.known.get(entry.session, [])
        if turn in self.turns:
            self.say("duplicated", f"turn {turn}: its prompt")
        if keep > len(known):
            self.say("lost", f"turn {turn} keeps {keep} of {len(known)} ids")
        self.known[entry.session] = known[:keep] + ids
        self.turns[turn] = _FoundTurn(entry.session, list(self.known[entry.session]))

    def _output(self, entry: t.Entry, offset: int, ids: list[int]) -> None:
        turn, found = entry.turn, self._turn(entry)
        if offset < len(found.output):
            self.say("duplicated", f"turn {turn}: output {offset}, {len(found.output)} were there")
        elif offset > len(found.output):
            self.say("lost", f"turn {turn}: output {len(found.output)} to {offset}")
        found.output += ids
        self.known.setdefault(entry.session, []).extend(ids)


def _differences(book: TurnBook, found: _FoundTurn, *, last: bool) -> Iterator[tuple[Kind, str]]:
    """What is wrong with a turn that is there; ``last``: no other follows it on its line."""
    if found.prompt != book.prompt:
        yield "strange", f"its prompt has other ids than the {len(book.prompt)} sent"
    if found.output != book.output[: len(found.output)]:
        yield "strange", f"its output of {len(found.output)} ids is not what was sent"
    if len(found.output) < book.heard:
        yield "lost", f"{book.heard} output ids were acknowledged, {len(found.output)} are there"
    if found.firsts > 1:
        yield "duplicated", f"{found.firsts} first tokens"
    if book.first and not found.firsts:
        yield "lost", "its first token"
    if len(found.ends) > 1:
        yield "duplicated", f"it ended {len(found.ends)} times"
    reasons = {book.reason, None if last else "superseded", None if book.ended else "timeout"}
    if any(end not in reasons for end in found.ends):
        yield "strange", f"it ended with {found.ends}"
    if (book.ended or not last) and not found.ends:
        yield "lost", "its end"
    if book.ended and found.ends and found.ends[0] != book.reason:
        yield "lost", f"its end is {found.ends[0]}, {book.reason} was acknowledged"

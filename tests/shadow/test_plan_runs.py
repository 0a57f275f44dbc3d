"""The plan over a long run: nobody starves."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from shadow_reader.shadow.plan import (
    STARVED_S,
    AnswerNext,
    Candidate,
    ReadNext,
    Situation,
    Waiting,
    plan,
)
from tests.shadow.situations import GRID, asks, behind


@dataclass
class Run:
    """A simulated service: bursts take their time, and every one is counted."""

    burst_s: float = 2.0
    chunk_s: float = 0.1
    now_s: float = 0.0
    starved_last: bool = False
    sessions: dict[str, Candidate] = field(default_factory=dict)
    waiting: list[Waiting] = field(default_factory=list)
    served: Counter[str] = field(default_factory=Counter)
    longest: dict[str, float] = field(default_factory=dict)
    answered: dict[str, float] = field(default_factory=dict)

    def step(self) -> None:
        action = plan(
            Situation(
                self.now_s,
                GRID,
                True,
                False,
                self.starved_last,
                list(self.sessions.values()),
                tuple(self.waiting),
            )
        )
        if isinstance(action, AnswerNext):
            self.answered[action.question] = self.now_s
            self.waiting = [w for w in self.waiting if w.question != action.question]
            self.now_s += 0.01
        elif isinstance(action, ReadNext):
            self.starved_last = action.starved
            self.read(action.session)
        else:
            self.now_s += 0.2

    def read(self, name: str) -> None:
        c = self.sessions[name]
        self.longest[name] = max(self.longest.get(name, 0.0), self.now_s - c.unserved_s)
        self.served[name] += 1
        chunks = min((c.known - c.committed) // GRID, int(self.burst_s / self.chunk_s))
        self.now_s += chunks * self.chunk_s
        self.sessions[name] = replace(
            c, committed=c.committed + chunks * GRID, unserved_s=self.now_s
        )


def test_a_session_that_is_never_fresh_starves_nobody() -> None:
    """A nonce early in each prompt: the running session never comes to its end."""
    run = Run()
    run.sessions["nonce"] = behind("nonce", 10_000, running=True, unserved_s=0.0)
    for number in range(12):
        name = f"s{number:02}"
        run.sessions[name] = behind(name, 100, heard_s=float(number), unserved_s=0.0)
    while run.now_s < 3000:
        run.step()
        # It grows faster than it is read.
        nonce = run.sessions["nonce"]
        run.sessions["nonce"] = replace(nonce, committed=0, heard_s=run.now_s)
    others = [c for name, c in run.sessions.items() if name != "nonce"]
    assert all(c.known - c.committed < GRID for c in others), "everybody else is fresh at last"
    # A round of twelve, every other burst, on top of the limit.
    assert max(run.longest[c.session] for c in others) <= STARVED_S + 2 * 12 * run.burst_s + 2
    assert run.served["nonce"] > 100


def test_a_crowd_that_starves_does_not_starve_a_question() -> None:
    run = Run()
    for number in range(40):
        name = f"s{number:02}"
        run.sessions[name] = behind(name, 2000, heard_s=float(number), unserved_s=-100.0)
    run.sessions["asked"] = behind("asked", 100, heard_s=-1.0, unserved_s=0.0)
    run.waiting.append(asks("q", "asked", asked_s=0.0))
    while "q" not in run.answered:
        run.step()
    # Five bursts of its own, and at most as many of others between them.
    assert run.answered["q"] <= 2 * 5 * run.burst_s + 1


def test_questions_that_never_end_keep_nobody_from_being_read_for_ever() -> None:
    run = Run()
    run.sessions["asked"] = behind("asked", 100_000, unserved_s=0.0)
    run.sessions["quiet"] = behind("quiet", 100, heard_s=0.0, unserved_s=0.0)
    run.waiting = [asks(f"q{n}", "asked", asked_s=float(n)) for n in range(5)]
    while run.now_s < 400:
        run.step()
    quiet = run.sessions["quiet"]
    assert quiet.known - quiet.committed < GRID

"""The whole evaluation: every wanted question of a journal, asked again in every way.

Law: one session is held at a time. Turns are compared in pairs, so every way of asking is asked of
the same turns; what could not be asked is counted, never left out silently.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from shadow_reader.errors import NotFoundError, ShadowError
from shadow_reader.replay.router.asking import Asker, Told
from shadow_reader.replay.router.control import TOLERANCE, Control, EngineControl, Verdict
from shadow_reader.replay.router.figures import Figures, Turn, figures
from shadow_reader.replay.router.past import (
    Entries,
    Filter,
    Past,
    find_wanted,
    loaded_engines,
    past_questions,
)
from shadow_reader.replay.router.wordings import SAME, Variant
from shadow_reader.shadow.engine import EngineIdentity

JOURNAL: Final = "journal"
"""What the journal's own answers are called beside ours."""
OTHER_CLASS: Final = "their own class is not among the classes"


@dataclass(frozen=True, slots=True)
class Unasked:
    """Questions that a way of asking could not be put to: how many, and what the first one's
    error says."""

    variant: str
    code: str
    count: int
    first: str


@dataclass(frozen=True, slots=True)
class Report:
    """What came out.

    Attributes:
        asked: questions asked again, of so many sessions; restored: sessions whose state came from
            a snapshot; read: ids that were read.
        control: by the engine that answered live.
        figures: None where no question has a class of the router's own beside it.
        skipped: questions that were not asked again, by why.
    """

    engine: EngineIdentity
    variants: tuple[str, ...]
    sessions: int
    asked: int
    restored: int
    read: int
    verdict: Verdict
    control: tuple[EngineControl, ...]
    figures: Figures | None
    skipped: dict[str, int]
    unasked: tuple[Unasked, ...]


async def evaluate(
    journal: Entries,
    asker: Asker,
    chosen: Filter,
    variants: Sequence[Variant] = (),
    *,
    classes: Sequence[str] = (),
    tolerance: float = TOLERANCE,
    begun: Callable[[int, int, str], None] | None = None,
) -> Report:
    """Ask again, the same first and then in every other way. Blocks the loop while it asks.

    Args:
        classes: turns whose own class is another one are left out; none: all stay.
        begun: called with (sessions done, sessions, the session that is next).

    Raises:
        NotFoundError: the journal has nothing that was asked for, or nothing of it can be asked.
        InvalidInputError, TooLargeError: a way of asking could be put to no question at all.
        JournalFormatError, VocabularyError, OutOfRoomError: as ``past_questions`` and ``Asker``.
    """
    wanted = await find_wanted(journal, chosen)
    engines = await loaded_engines(journal)
    run = _Run(asker, [Variant(SAME), *variants], Control(asker.engine.identity, tolerance))
    try:
        for place, (session, questions) in enumerate(wanted.items()):
            kept = [one for one in questions if not classes or one.own in classes]
            run.skipped[OTHER_CLASS] += len(questions) - len(kept)
            if not kept:
                continue
            if begun is not None:
                begun(place, len(wanted), session)
            found = past_questions(journal, session, kept, engines, run.skipped)
            async with contextlib.aclosing(found) as pasts:
                async for past in pasts:
                    run.take(past)
            asker.leave()
    finally:
        asker.leave()
    return run.report()


class _Run:
    def __init__(self, asker: Asker, variants: list[Variant], control: Control) -> None:
        self.skipped: Counter[str] = Counter()
        self._asker = asker
        self._variants = variants
        self._control = control
        self._turns: list[Turn] = []
        self._sessions: set[str] = set()
        self._asked = 0
        self._told: Counter[str] = Counter()
        self._unasked: Counter[tuple[str, str]] = Counter()
        self._errors: dict[tuple[str, str], ShadowError] = {}

    def take(self, past: Past) -> None:
        labels = {JOURNAL: past.answer.label}
        for variant, told in zip(
            self._variants, self._asker.ask(past, self._variants), strict=True
        ):
            if isinstance(told, Told):
                labels[variant.name] = told.label
                self._told[variant.name] += 1
                if variant is self._variants[0]:
                    self._control.take(past, told)
            else:
                key = variant.name, told.code
                self._unasked[key] += 1
                self._errors.setdefault(key, told)
        if len(labels) > 1:
            self._asked += 1
            self._sessions.add(past.wanted.session)
        if past.wanted.own is not None:
            one = past.wanted
            self._turns.append(Turn(one.session, past.wanted.own, one.behind, labels))

    def report(self) -> Report:
        for (name, _), error in self._errors.items():
            if not self._told[name]:
                raise error
        skipped = {why: count for why, count in self.skipped.items() if count}
        if not self._asked:
            reasons = "; ".join(f"{why}: {count}" for why, count in skipped.items())
            raise NotFoundError(
                f"nothing is left to ask again: {reasons}", field="classes", skipped=skipped
            )
        names = [JOURNAL, *(variant.name for variant in self._variants)]
        return Report(
            self._asker.engine.identity,
            tuple(names),
            len(self._sessions),
            self._asked,
            self._asker.restored,
            self._asker.read,
            self._control.verdict,
            tuple(self._control.engines.values()),
            figures(self._turns, names),
            skipped,
            tuple(
                Unasked(name, code, count, self._errors[name, code].message)
                for (name, code), count in self._unasked.items()
            ),
        )

"""What a journal says is right, and of which ids: what a probe can learn.

Law: a label is about the ids of its moment, whatever a later prompt made of the session. Said again
of the same ids the newest counts. One session is folded at a time, and what is left out is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from shadow_reader.errors import JournalFormatError, NotFoundError
from shadow_reader.events import types as t
from shadow_reader.events.branches import split_name
from shadow_reader.events.fold import fold
from shadow_reader.events.ids import Ids
from shadow_reader.events.view import SessionView
from shadow_reader.replay.router.past import Entries

ROUTER: Final = "router"
_LABELS: Final = "labels:"
NO_MESSAGE: Final = "no message ends in the prompt"
SHORTER: Final = "about fewer ids than were asked for"
OTHER_CLASS: Final = "of another class"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which labels are wanted.

    Attributes:
        name: of the labels; None: the classes of the server's own router, which came with prompts,
            each at the end of its prompt's last message.
        source: only labels of this one. decided: only classes that the router decided on the turn.
        session: only this one, with its branches.
        since, until: unix seconds; the second is not included. after: only later entries.
        classes: only these; none: all.
        least_ids: only about so many ids or more.
    """

    name: str | None = None
    source: str | None = None
    decided: bool = False
    session: str | None = None
    since: float | None = None
    until: float | None = None
    after: int = 0
    classes: tuple[str, ...] = ()
    least_ids: int = 0

    @classmethod
    def as_told(cls, told: str) -> Wanted:
        """Labels such as a probe was trained on, by its ``source``."""
        if told == ROUTER:
            return cls()
        name, at, source = told.removeprefix(_LABELS).partition("@")
        return cls(name=name, source=source if at else None)

    @property
    def told(self) -> str:
        """Whose labels these are, as a probe says it: ``router``, ``labels:NAME[@SOURCE]``."""
        if self.name is None:
            return ROUTER
        return f"{_LABELS}{self.name}" + (f"@{self.source}" if self.source is not None else "")


@dataclass(frozen=True, slots=True)
class Labelled:
    """Of the first ``position`` ids of a line of talk, ``value`` is right; ``seq`` says so."""

    line: str
    seq: int
    position: int
    value: str

    @property
    def session(self) -> str:
        """Whose line it is: lines of one session resemble each other."""
        return split_name(self.line)[0]


@dataclass(frozen=True, slots=True)
class Found:
    """Labels by line, both in the journal's order, up to entry ``newest``; ``skipped``: others."""

    wanted: Wanted
    im_end: int
    newest: int
    lines: dict[str, list[Labelled]] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)

    @property
    def labels(self) -> list[Labelled]:
        """All of them."""
        return [one for labels in self.lines.values() for one in labels]


async def find_labels(journal: Entries, wanted: Wanted, im_end: int) -> Found:
    """Every label that is wanted.

    Args:
        im_end: the id that ends a message.

    Raises:
        NotFoundError: there is none; names those that there are.
        JournalFormatError: entries that cannot follow, or a label beyond the ids of its moment.
    """
    newest = [entry.seq async for entry in journal.entries(newest_first=True, limit=1)]
    found = Found(wanted, im_end, newest[0] if newest else 0)
    for line in await _lines(journal, wanted):
        pairs = await line_labels(journal, line, found, found.skipped)
        if pairs:
            found.lines[line] = [one for one, _ in pairs]
    if not found.lines:
        raise await _nothing(journal, found)
    return found


async def line_labels(
    journal: Entries, line: str, found: Found, skipped: Counter[str]
) -> list[tuple[Labelled, Ids]]:
    """The wanted labels of one line, in the journal's order, each with its ids."""
    wanted = found.wanted
    gathered = _Gathered()
    view: SessionView | None = None
    async for entry in journal.entries(session=line):
        if entry.seq > found.newest:
            break
        view = fold(view, entry)
        event = entry.event
        if isinstance(event, t.SessionErased):
            gathered = _Gathered()
        if isinstance(event, t.Prompt):
            gathered.keep(event.keep)
        if not _is_wanted(entry, wanted) or view is None:
            continue
        if isinstance(event, t.Label):
            one = Labelled(line, entry.seq, _checked(event, view, entry), event.value)
            gathered.say_again(one, view.known.take(event.position))
        elif isinstance(event, t.Prompt) and event.router is not None:
            ends = np.flatnonzero(view.known.array() == found.im_end)
            if not len(ends):
                skipped[NO_MESSAGE] += 1
                continue
            position = int(ends[-1]) + 1
            one = Labelled(line, entry.seq, position, event.router)
            gathered.say(one, view.known.take(position))
    return _chosen(gathered.all(), wanted, skipped)


def _is_wanted(entry: t.Entry, wanted: Wanted) -> bool:
    if entry.seq <= wanted.after or (wanted.since is not None and entry.at < wanted.since):
        return False
    if wanted.until is not None and entry.at >= wanted.until:
        return False
    event = entry.event
    if isinstance(event, t.Prompt):
        own = wanted.name is None and event.router is not None
        return own and (event.decided is True or not wanted.decided)
    return (
        isinstance(event, t.Label)
        and event.name == wanted.name
        and wanted.source in (None, event.source)
    )


def _checked(label: t.Label, view: SessionView, entry: t.Entry) -> int:
    if not 0 <= label.position <= len(view.known):
        raise JournalFormatError(
            f"entry {entry.seq}: label {label.name!r} of session {entry.session!r} is about "
            f"{label.position} ids, and {len(view.known)} were known",
            seq=entry.seq,
            session=entry.session,
            found=label.position,
            limit=len(view.known),
        )
    return label.position


class _Gathered:
    """Labels of a line; those about ids that are still known can be said again."""

    def __init__(self) -> None:
        self._said: list[tuple[Labelled, Ids]] = []
        self._open: dict[int, tuple[Labelled, Ids]] = {}

    def keep(self, keep: int) -> None:
        """A prompt keeps so many ids: labels about more are of ids that are gone."""
        gone = [position for position in self._open if position > keep]
        self._said += [self._open.pop(position) for position in gone]

    def say_again(self, one: Labelled, base: Ids) -> None:
        """In the place of what was said of these ids before."""
        self._open[one.position] = one, base

    def say(self, one: Labelled, base: Ids) -> None:
        """Beside what was said of these ids before."""
        self._said.append((one, base))

    def all(self) -> list[tuple[Labelled, Ids]]:
        """In the journal's order."""
        return sorted([*self._said, *self._open.values()], key=lambda pair: pair[0].seq)


def _chosen(
    pairs: Iterable[tuple[Labelled, Ids]], wanted: Wanted, skipped: Counter[str]
) -> list[tuple[Labelled, Ids]]:
    found = []
    for one, base in pairs:
        if wanted.classes and one.value not in wanted.classes:
            skipped[OTHER_CLASS] += 1
        elif one.position < wanted.least_ids:
            skipped[SHORTER] += 1
        else:
            found.append((one, base))
    return found


async def _lines(journal: Entries, wanted: Wanted) -> list[str]:
    """The lines that may have labels, as they come in the journal."""
    kinds = ["prompt"] if wanted.name is None else ["label"]
    found: dict[str, None] = {}
    async for entry in journal.entries(kinds=kinds):
        if wanted.session in (None, entry.session, split_name(entry.session)[0]):
            found[entry.session] = None
    return list(found)


async def _nothing(journal: Entries, found: Found) -> NotFoundError:
    wanted = found.wanted
    names: Counter[str] = Counter()
    async for entry in journal.entries(kinds=["label"]):
        if isinstance(entry.event, t.Label):
            names[f"{entry.event.name}@{entry.event.source}"] += 1
    held = ", ".join(f"{name} {count}" for name, count in sorted(names.items())) or "none"
    what = "class of the router's own" if wanted.name is None else f"label {wanted.name!r}"
    if wanted.source is not None:
        what += f" of source {wanted.source!r}"
    if wanted.session is not None:
        what += f" of session {wanted.session!r}"
    left = "".join(f"; left out: {why}: {count}" for why, count in found.skipped.items())
    return NotFoundError(
        f"the journal holds no {what} that was asked for{left}; labels by name and source: {held}",
        field="router" if wanted.name is None else "label",
        found=dict(names),
        skipped=dict(found.skipped),
    )

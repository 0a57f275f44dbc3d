"""Branches: one session key that carries several lines of talk.

An agent asks for a title, or starts anew after a compaction, under the key of the session it works
in. Such a prompt must not cost the long line its state. So each line of a session is kept under a
name of its own: the first under the session's, another one under a name that no client can give a
session. To the fold, the journal and the reader a line is a session like any other.

Laws: pure, like the fold. A prompt goes to the line that it continues, or whose talk it tells again
in other ids: templates drop earlier reasoning, and render tool calls anew. A new line is begun only
where continuing one would lose more than it keeps. Their number is bounded: where no more may be
begun, the prompt takes over the line that nobody spoke of for longest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shadow_reader.events.decide import MAX_NAME_LENGTH
from shadow_reader.events.ids import ID_BYTES, Ids
from shadow_reader.events.view import SessionView

MAX_BRANCHES: Final = 16
"""Greatest value of the setting ``branches``."""

PROBES: Final = 16
PROBE_IDS: Final = 24
TOLD_AGAIN: Final = 0.25
"""From this part on a prompt that tells a line's talk again is that line's. Where a template drops
the reasoning, what is left is more; a title request, or a summary, quotes less."""

MAX_LINE_NAME_LENGTH: Final = MAX_NAME_LENGTH + len("~branch99")

_BRANCH: Final = re.compile(r"(.+)~branch(0|[1-9][0-9]?)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a session's talk, as the choice sees it.

    Attributes:
        view: None: nothing is said on it yet.
        heard: rises with the last message; of two lines the greater was spoken of later.
    """

    view: SessionView | None
    heard: float


def line_name(session: str, branch: int) -> str:
    """The name that a line is journaled under; branch 0 is the session's first line."""
    return f"{session}~branch{branch}" if branch else session


def split_name(name: str) -> tuple[str, int | None]:
    """The session, and the branch that the name means; None: it names the session as a whole."""
    found = _BRANCH.fullmatch(name)
    return (name, None) if found is None else (found[1], int(found[2]))


def line_names(session: str, branches: int) -> tuple[str, ...]:
    """The names of a session's lines, its first line's first."""
    return tuple(line_name(session, branch) for branch in range(branches + 1))


def choose_line(lines: Sequence[Line], prompt: Ids, *, branch_min: int, branches: int) -> int:
    """The index of the line that ``prompt`` goes to; a free line, or one more, begins anew.

    Args:
        lines: the session's lines by their branch numbers; at least one.
        branch_min: most ids that a prompt may replace without beginning a new line.
        branches: most lines beside the first.
    """
    begun = [i for i, line in enumerate(lines) if line.view is not None]
    if not begun:
        return 0
    agreed = {i: _known(lines[i]).common_prefix(prompt) for i in begun}
    # The line that shares most; of equals the one that would lose least, then the one heard last.
    order = sorted(
        begun, key=lambda i: (-agreed[i], len(_known(lines[i])) - agreed[i], -lines[i].heard)
    )
    for i in order:
        if continues(lines[i].view, agreed[i], prompt, branch_min=branch_min):
            return i
    free = next((i for i, line in enumerate(lines) if line.view is None), len(lines))
    if free <= branches:
        return free
    return min(begun, key=lambda i: (_runs(lines[i]), lines[i].heard))


def continues(view: SessionView | None, agree: int, prompt: Ids | None, *, branch_min: int) -> bool:
    """Whether a prompt that agrees with the first ``agree`` known ids goes on with this line.

    It does where it shares at least half of them, or tells enough of the rest again. While the
    line's turn runs, anything else is another request; afterwards it goes on here all the same if
    at most ``branch_min`` ids go.

    Args:
        prompt: the whole prompt; None where nothing but its beginning is known.
    """
    if view is None:
        return False
    known = len(view.known)
    if 2 * agree >= known or (not view.running and known - agree <= branch_min):
        return True
    return prompt is not None and told_again(view.known, agree, prompt) >= TOLD_AGAIN


def told_again(known: Ids, agree: int, prompt: Ids) -> float:
    """How much of the known ids above ``agree`` stands somewhere in the rest of ``prompt``.

    Of ``PROBES`` pieces of ``PROBE_IDS`` ids, evenly spread, the part that is found, 0 to 1.
    """
    last = len(known) - PROBE_IDS
    if last < agree:
        return 0.0
    rest = prompt.window(min(agree, len(prompt)), len(prompt)).to_bytes()
    starts = sorted({agree + (last - agree) * n // (PROBES - 1) for n in range(PROBES)})
    probes = [known.window(start, start + PROBE_IDS).to_bytes() for start in starts]
    return sum(_holds(rest, probe) for probe in probes) / len(probes)


def _holds(ids: bytes, probe: bytes) -> bool:
    at = ids.find(probe)
    while at > 0 and at % ID_BYTES:  # found across two ids
        at = ids.find(probe, at + 1)
    return at >= 0


def _known(line: Line) -> Ids:
    assert line.view is not None
    return line.view.known


def _runs(line: Line) -> bool:
    return line.view is not None and line.view.running

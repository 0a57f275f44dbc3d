"""From the requests that a record holds to the turns of a ledger.

What a ledger cannot hold is never dropped in silence: each reason is counted.

- A session's requests are put in order of time and numbered.
- One that began before the one above it ended is moved to that end (``start_s`` assumed); where it
  also ended before that, it is left out.
- The prefix is counted where ids are known. Otherwise it is assumed: nothing after a compaction,
  else the shorter of the two prompts, which is the most it can be without the output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from shadow_reader.errors import RecordError
from shadow_reader.replay.ledger.ledger import ledger_of
from shadow_reader.replay.ledger.turn import ASSUMABLE, Turn

NO_COUNTS: Final = "requests without counts"
NO_END: Final = "requests without an end"
DUPLICATE: Final = "requests that stand twice"
FAILED: Final = "failed requests"


@dataclass(frozen=True, slots=True)
class Request:
    """One request as a record tells it; times are unix seconds.

    ``restarts``: the agent compacted just before. ``prompt`` and ``output`` are the ids, where the
    record has them; they win over the counters. ``assumed`` names fields that are guesses.
    """

    session: str
    start_s: float
    end_s: float
    prompt_ids: int
    output_ids: int
    first_s: float | None = None
    parent: str | None = None
    restarts: bool = False
    prompt: Sequence[int] | None = None
    output: Sequence[int] | None = None
    assumed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Imported:
    """The turns in order of time, and by reason how many were left out or are not as measured."""

    sources: Mapping[str, int]
    turns: tuple[Turn, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)
    notes: Mapping[str, int] = field(default_factory=dict)


class Intake:
    """Takes requests from any number of files and settles them into turns."""

    def __init__(self) -> None:
        self._requests: dict[str, list[Request]] = {}
        self._sources: Counter[str] = Counter()
        self._left_out: Counter[str] = Counter()
        self._notes: Counter[str] = Counter()
        self._seen: set[Hashable] = set()

    def source(self, name: str) -> None:
        """Count a file or database of a format."""
        self._sources[name] += 1

    def leave_out(self, reason: str, count: int = 1) -> None:
        """Count requests, or lines, that the ledger will not hold."""
        self._left_out[reason] += count

    def note(self, reason: str, count: int = 1) -> None:
        """Count requests that the ledger holds other than the record says."""
        self._notes[reason] += count

    def first_time(self, key: Hashable) -> bool:
        """Whether a request's own key comes for the first time; counted as left out if not."""
        if key in self._seen:
            self.leave_out(DUPLICATE)
            return False
        self._seen.add(key)
        return True

    def add(self, request: Request) -> None:
        """Take a request, unless it has no prompt or ends before it begins (then it is counted)."""
        if request.prompt is not None:
            request = self._by_ids(request)
        if request.prompt_ids < 1 or request.output_ids < 0:
            self.leave_out(NO_COUNTS)
        elif request.end_s < request.start_s or request.start_s < 0:
            self.leave_out("requests that end before they begin")
        else:
            self._requests.setdefault(request.session, []).append(self._first_inside(request))

    def done(self) -> Imported:
        """The turns of everything taken.

        Raises:
            RecordError: there is none.
        """
        turns = [turn for own in self._requests.values() for turn in self._settled(own)]
        turns.sort(key=lambda turn: (turn.start_s, turn.session, turn.turn))
        if not turns:
            reasons = ", ".join(f"{n} {why}" for why, n in sorted(self._left_out.items()))
            raise RecordError(
                f"no request to import; left out: {reasons or 'nothing'}",
                left_out=dict(self._left_out),
            )
        ledger_of("import", turns)
        for name in ASSUMABLE:
            self.note(f"{name} assumed", sum(name in turn.assumed for turn in turns))
        self.note("first_s unknown", sum(turn.first_s is None for turn in turns))
        return Imported(
            _counts(self._sources), tuple(turns), _counts(self._left_out), _counts(self._notes)
        )

    def _by_ids(self, request: Request) -> Request:
        assert request.prompt is not None
        made = len(request.output) if request.output is not None else request.output_ids
        if (request.prompt_ids, request.output_ids) != (len(request.prompt), made):
            self.note("counters that contradict the ids")
        return replace(request, prompt_ids=len(request.prompt), output_ids=made)

    def _first_inside(self, request: Request) -> Request:
        first = request.first_s
        if first is None or request.start_s <= first <= request.end_s:
            return request
        self.note("first ids outside their request")
        return replace(request, first_s=None)

    def _settled(self, requests: list[Request]) -> list[Turn]:
        turns: list[Turn] = []
        before: Request | None = None
        for request in sorted(requests, key=lambda one: (one.start_s, one.end_s)):
            assumed = set(request.assumed)
            start, first = request.start_s, request.first_s
            if before is not None and start < before.end_s:
                if request.end_s < before.end_s:
                    self.leave_out("requests inside another one of their session")
                    continue
                start, first = before.end_s, _not_before(first, before.end_s)
                assumed.add("start_s")
                self.note("requests that began before the last one of their session ended")
            prefix, guessed = _prefix(before, request)
            if guessed:
                assumed.add("prefix_ids")
            if first is None:
                assumed.discard("first_s")
            if before is not None and request.restarts:
                self.note("compactions")
            turns.append(
                Turn(
                    session=request.session,
                    parent=requests[0].parent,
                    turn=len(turns),
                    start_s=start,
                    first_s=first,
                    end_s=request.end_s,
                    prompt_ids=request.prompt_ids,
                    prefix_ids=prefix,
                    output_ids=request.output_ids,
                    assumed=tuple(name for name in ASSUMABLE if name in assumed),
                )
            )
            before = request
        return turns


def _not_before(first: float | None, start: float) -> float | None:
    return first if first is not None and first >= start else None


def _prefix(before: Request | None, request: Request) -> tuple[int, bool]:
    """How many ids of the prompt were known, and whether that is a guess."""
    if before is None:
        return 0, False
    if request.prompt is not None and before.prompt is not None and before.output is not None:
        known = [*before.prompt, *before.output]
        pairs = enumerate(zip(known, request.prompt, strict=False))
        parted = next((n for n, (old, new) in pairs if old != new), None)
        return min(len(known), len(request.prompt)) if parted is None else parted, False
    if request.restarts:
        return 0, True
    return min(before.prompt_ids, request.prompt_ids), True


def _counts(counter: Counter[str]) -> Mapping[str, int]:
    return MappingProxyType({why: n for why, n in sorted(counter.items()) if n})

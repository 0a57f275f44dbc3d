"""A feed's messages on their way, and the lines that answer them once they are committed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeAlias

import orjson

from shadow_reader.errors import ShadowError
from shadow_reader.http.errors import error_data
from shadow_reader.shadow.sessions import Receipt, RunReceipt

Refused: TypeAlias = Callable[[ShadowError], None]
"""Told of each line that is refused."""

_ACCEPTED: Final = b'{"line":%d,"ok":true,"session":%b,"turn":%b,"known":%d,"output":%d,"seq":%b}\n'


class Run:
    """Outputs of one turn that came in a row: submitted together, as many events."""

    __slots__ = ("deltas", "lines", "session", "size", "turn")

    def __init__(self, session: str = "", turn: str = "") -> None:
        self.session = session
        self.turn = turn
        self.lines: list[int] = []
        self.deltas: list[tuple[int, Any]] = []
        self.size = 0


@dataclass(slots=True)
class Pending:
    """A message on its way: its line, its size in bytes, what came of it so far."""

    line: int
    size: int
    outcome: Receipt | ShadowError

    @property
    def count(self) -> int:
        """Lines that it answers."""
        return 1

    @property
    def settled(self) -> bool:
        """Whether the answer is there."""
        outcome = self.outcome
        return isinstance(outcome, ShadowError) or outcome.settled

    async def replies(self, refused: Refused) -> bytes:
        """The line that answers, once there is an answer."""
        outcome = self.outcome
        if not isinstance(outcome, ShadowError):
            try:
                accepted = await outcome
            except ShadowError as error:
                outcome = error
            else:
                reply = {"line": self.line, "ok": True, **asdict(accepted)}
                return orjson.dumps(reply, option=orjson.OPT_APPEND_NEWLINE)
        return _refusal(self.line, outcome, refused)


@dataclass(slots=True)
class PendingRun:
    """A run of outputs on its way."""

    run: Run
    receipt: RunReceipt

    @property
    def count(self) -> int:
        """Lines that it answers."""
        return len(self.run.lines)

    @property
    def size(self) -> int:
        """Bytes of its lines."""
        return self.run.size

    @property
    def settled(self) -> bool:
        """Whether the answers are there."""
        return self.receipt.settled

    async def replies(self, refused: Refused) -> bytes:
        """The lines that answer, each as ``Pending`` would give it."""
        lines = self.run.lines
        try:
            seqs = await self.receipt
        except ShadowError as error:
            # What was refused before it was journaled keeps its own reason.
            outcomes = self.receipt.outcomes
            found = [o if isinstance(o, ShadowError) else error for o in outcomes]
            return b"".join(
                _refusal(line, one, refused) for line, one in zip(lines, found, strict=True)
            )
        names = orjson.dumps(self.run.session), orjson.dumps(self.run.turn)
        parts = []
        for line, outcome in zip(lines, self.receipt.outcomes, strict=True):
            if isinstance(outcome, ShadowError):
                parts.append(_refusal(line, outcome, refused))
            else:
                known, output, event = outcome
                seq = b"null" if event is None else b"%d" % seqs[event]
                parts.append(_ACCEPTED % (line, *names, known, output, seq))
        return b"".join(parts)


def _refusal(line: int, error: ShadowError, refused: Refused) -> bytes:
    refused(error)
    reply = {"line": line, "ok": False, "error": error_data(error)}
    return orjson.dumps(reply, default=repr, option=orjson.OPT_APPEND_NEWLINE)

"""Recorded turns sent the way a serving engine reports them: prompt, first token, deltas, end.

Law: every message is derived from the turn alone, so a turn that was cut off can be sent again
from any acknowledged offset and means the same.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from shadow_reader.http.client import ShadowClient
    from shadow_reader.replay.turns import RecordedTurn
    from shadow_reader.shadow.sessions import Accepted

Message: TypeAlias = dict[str, Any]
OnReply: TypeAlias = Callable[["Accepted"], None]

_END_REASONS: Final = {"stop": "stop", "aborted": "abort"}


@dataclass(frozen=True, slots=True)
class EngineFeed:
    """Sends turns of one session.

    Attributes:
        session: the session's id at the server.
        rate: output ids a second; None sends them at once.
        seed: cuts the outputs into deltas.
        profile: of every turn, as the server's settings name it.
    """

    client: ShadowClient
    session: str
    rate: float | None = None
    seed: int = 0
    profile: str | None = None

    async def send(
        self,
        turn: RecordedTurn,
        on_reply: OnReply,
        *,
        start: int | None = None,
        stop: int | None = None,
    ) -> None:
        """Send a turn, or a part of it, on one feed.

        Args:
            on_reply: told of every acknowledgement, in order.
            start: output ids that were sent already; None begins with the prompt.
            stop: output ids after which the turn pauses; None goes on to its end and says so.

        Raises:
            ShadowError: the first refusal, or what broke the feed. What ``on_reply`` was told
            before stands.
        """
        replies = self.client.feed(self._messages(turn, start, stop))
        async with contextlib.aclosing(replies):
            async for reply in replies:
                if reply.accepted is None:
                    assert reply.error is not None, "a reply holds one of the two"
                    raise reply.error
                on_reply(reply.accepted)

    async def _messages(
        self, turn: RecordedTurn, start: int | None, stop: int | None
    ) -> AsyncIterator[Message]:
        if start is None:
            named = {} if self.profile is None else {"profile": self.profile}
            yield self._message("prompt", turn, ids=turn.prompt, **named)
            yield self._message("first_token", turn)
        async for message in self._deltas(turn, start or 0, stop):
            yield message
        if stop is None:
            reason = _END_REASONS[turn.reason]
            yield self._message("end", turn, reason=reason, produced=len(turn.output))

    async def _deltas(
        self, turn: RecordedTurn, offset: int, stop: int | None
    ) -> AsyncIterator[Message]:
        from shadow_reader.replay.deltas import split_deltas

        seed = f"{self.seed}/{turn.turn}/{offset}"
        for delta in split_deltas(turn.output[offset:stop], seed=seed):
            if self.rate is not None:
                await asyncio.sleep(len(delta) / self.rate)
            yield self._message("output", turn, offset=offset, ids=delta)
            offset += len(delta)

    def _message(self, kind: str, turn: RecordedTurn, **fields: Any) -> Message:
        return {"kind": kind, "session": self.session, "turn": turn.turn, **fields}

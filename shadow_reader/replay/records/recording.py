"""A recorded session in one shape, whichever agent wrote it.

One assistant message is one request of the big model: a turn. ``messages`` stands in the order in
which the agent showed them; four flags say where a prompt is not simply everything above it:

- ``kept`` False: the agent dropped the message afterwards (failed, cancelled). It was a turn all
  the same, and the next prompt lacks it.
- ``finished`` False: the answer was cut off, so no end-of-turn id was produced.
- ``restart``: the agent compacted. Prompts below begin here; nothing above is shown again.
- ``history``: shown again after a restart, or put there by the agent itself. Part of the prompt,
  not a turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from shadow_reader.errors import RecordError

Role = Literal["user", "assistant", "tool"]

NO_RESULT = "[no result: the call was interrupted]"
"""What a prompt shows for a tool call that the record has no result of."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool. ``arguments`` is a JSON object, in the recorded order."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    call: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One message; see the module for the flags. ``call``: which tool call a result answers."""

    role: Role
    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    call: str = ""
    finished: bool = True
    kept: bool = True
    restart: bool = False
    history: bool = False

    @property
    def is_turn(self) -> bool:
        """True for a request of the big model."""
        return self.role == "assistant" and not self.history


@dataclass(frozen=True, slots=True)
class Recording:
    """A session that can be fed.

    ``source`` names the format; ``system`` and ``tools`` are empty where the agent does not
    record them; ``skipped`` counts by reason what the record holds and the prompts do not.
    """

    session: str
    source: str
    system: str = ""
    tools: tuple[Mapping[str, Any], ...] = ()
    messages: tuple[Message, ...] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)

    @property
    def turns(self) -> int:
        """How many requests of the big model it holds; at least one."""
        return sum(message.is_turn for message in self.messages)


class Draft:
    """Collects what a reader finds and settles it into a ``Recording``."""

    def __init__(self, source: str) -> None:
        self.session = ""
        self.messages: list[Message] = []
        self.skipped: Counter[str] = Counter()
        self._source = source

    def skip(self, reason: str, count: int = 1) -> None:
        """Count something that is left out."""
        self.skipped[reason] += count

    def add(self, message: Message) -> None:
        """Take a message, unless it says nothing at all."""
        if message.role != "tool" and not (message.text or message.reasoning or message.tool_calls):
            self.skip("empty messages")
            return
        self.messages.append(message)

    def done(self) -> Recording:
        """The recording.

        Raises:
            RecordError: there is no answer of a model in it, so nothing to feed.
        """
        end = max((n for n, m in enumerate(self.messages) if m.is_turn), default=-1) + 1
        if end == 0:
            raise RecordError(
                f"nothing to feed: this {self._source} record holds no answer of a model",
                source=self._source,
                messages=len(self.messages),
            )
        messages = self._settle(self.messages[:end])
        self.skipped["unanswered messages"] += len(self.messages) - end
        return Recording(
            session=self.session or f"{self._source}-session",
            source=self._source,
            messages=tuple(messages),
            skipped=MappingProxyType({k: v for k, v in sorted(self.skipped.items()) if v}),
        )

    def _settle(self, messages: Sequence[Message]) -> list[Message]:
        """Every call of a kept message gets one result, directly below it and above user text."""
        settled: list[Message] = []
        waiting: list[str] = []
        others: list[Message] = []

        def close() -> None:
            for call in waiting:
                settled.append(Message("tool", NO_RESULT, call=call))
            self.skip("missing tool results", len(waiting))
            settled.extend(others)
            others.clear()

        for message in messages:
            if message.role == "assistant":
                close()
                settled.append(message)
                waiting = [call.call for call in message.tool_calls] if message.kept else []
            elif message.role == "user":
                others.append(message)
            elif message.call in waiting:
                waiting.remove(message.call)
                settled.append(message)
            else:
                self.skip("tool results without a call")
        assert not others, "a recording ends with its last turn"
        return settled

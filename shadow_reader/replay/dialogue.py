"""A conversation being written down: who speaks is scripted, what the tools print is not."""

from __future__ import annotations

from typing import Any

from shadow_reader.replay.records import Message, ToolCall
from shadow_reader.replay.workbench import Workbench


class Dialogue:
    """``messages`` so far, over one workbench, which the tool calls change."""

    def __init__(self, bench: Workbench) -> None:
        self.bench = bench
        self.messages: list[Message] = []

    def ask(self, text: str) -> None:
        """The person speaks."""
        self.messages.append(Message("user", text))

    def say(self, reasoning: str, text: str) -> None:
        """The model answers in words and is done."""
        self.messages.append(Message("assistant", text, reasoning))

    def act(self, reasoning: str, text: str, *calls: tuple[str, dict[str, Any]]) -> None:
        """The model calls tools; each is run, and its result stands below."""
        number = len(self.messages)
        made = tuple(
            ToolCall(name, arguments, f"call-{number}-{n}")
            for n, (name, arguments) in enumerate(calls)
        )
        self.messages.append(Message("assistant", text, reasoning, made))
        for call in made:
            result = self.bench.run(call.name, call.arguments)
            self.messages.append(Message("tool", result, call=call.call))

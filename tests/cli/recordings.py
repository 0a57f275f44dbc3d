"""A small recorded session, in a file as Claude Code writes one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_STAMP = "2026-01-02T03:04:0{}.000Z"


def _line(number: int, kind: str, message: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": kind,
        "uuid": f"u{number}",
        "parentUuid": f"u{number - 1}" if number else None,
        "sessionId": "recorded",
        "timestamp": _STAMP.format(number),
        "message": {"role": kind, **message},
    }


def _says(number: int, *content: dict[str, Any], stop: str = "end_turn") -> dict[str, Any]:
    message = {"id": f"m{number}", "content": list(content), "stop_reason": stop}
    return _line(number, "assistant", message)


def write_recording(folder: Path, *, words: int = 40) -> Path:
    """Three turns: a tool call, its end, and an answer to a second message of the person."""
    read = {"type": "tool_use", "id": "c1", "name": "Read", "input": {"file_path": "a.py"}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "x = 1\n" * words}
    lines = [
        _line(0, "user", {"content": "Read a.py please. " * words}),
        _says(1, {"type": "text", "text": "I read it. " * words}, read, stop="tool_use"),
        _line(2, "user", {"content": [result]}),
        _says(3, {"type": "text", "text": "It sets x to one, again and again. " * words}),
        _line(4, "user", {"content": "Why?"}),
        _says(5, {"type": "text", "text": "That cannot be seen from here. " * words}),
    ]
    file = folder / "session.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file

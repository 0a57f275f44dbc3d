"""Which agent wrote a file is told by its content, never by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shadow_reader.errors import RecordError
from shadow_reader.replay.records import claude_code, opencode, pi
from shadow_reader.replay.records.fields import as_object, parse
from shadow_reader.replay.records.recording import Recording

MAX_BYTES = 512 * 1024 * 1024
"""The largest file that is read; recorded sessions are a few megabytes."""

_KNOWN = "known are opencode exports, Claude Code and Pi session files"
_LOOK_LINES = 50


def read_recording(path: Path) -> Recording:
    """Read a recorded agent session.

    Args:
        path: an ``opencode export``, or the JSON lines of Claude Code or Pi.

    Raises:
        RecordError: the file cannot be read, is empty, too large, of an unknown format, holds a
            broken line (the message has its number), or no answer of a model to feed.
    """
    text = load_text(path)
    try:
        return _read(text)
    except RecordError as error:
        raise RecordError(f"{path}: {error.message}", path=str(path), **error.details) from error


def load_text(path: Path) -> str:
    """A file's text, without a byte-order mark.

    Raises:
        RecordError: it cannot be read, is too large or no UTF-8.
    """
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise RecordError(
                f"{path} has {size} bytes, the limit is {MAX_BYTES}", limit=MAX_BYTES, found=size
            )
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        reason = error.strerror or str(error)
        raise RecordError(f"{path} cannot be read: {reason}", path=str(path)) from error
    except UnicodeDecodeError as error:
        raise RecordError(
            f"{path} is not UTF-8 text: byte {error.start} cannot be read", path=str(path)
        ) from error


def _read(text: str) -> Recording:
    if not text.strip():
        raise RecordError("the file is empty")
    whole = whole_value(text)
    if opencode.is_export(whole):
        return opencode.read_export(whole)
    if isinstance(whole, list):
        raise RecordError(
            "a JSON array, perhaps opencode's event stream: " + _KNOWN + "; "
            "write the session with `opencode export` instead"
        )
    lines = [(1, whole)] if isinstance(whole, dict) else json_lines(text)
    if pi.is_session(lines[0][1]):
        return pi.read_session(lines)
    if any(claude_code.is_transcript(line) for _, line in lines[:_LOOK_LINES]):
        return claude_code.read_transcript(lines)
    raise RecordError(
        f"format unknown: {_KNOWN}; the first line has the fields "
        f"{', '.join(sorted(lines[0][1])[:8]) or 'none'}"
    )


def whole_value(text: str) -> Any:
    """The file as one JSON value, None if it is not one but perhaps lines of JSON.

    Raises:
        RecordError: it is one value over many lines, and broken.
    """
    try:
        return parse(text, "the file")
    except RecordError:
        first = text.lstrip().split("\n", 1)[0].strip()
        if first in ("{", "["):  # one value over many lines: its own error says more
            raise
        return None


def json_lines(text: str) -> list[tuple[int, dict[str, Any]]]:
    """Line number (from 1) and object of every line that is not blank.

    Raises:
        RecordError: a line is no JSON object; it is named.
    """
    # Only "\n" ends a line: JSON strings may hold U+2028 and its like, which splitlines() cuts at.
    return [
        (number, as_object(parse(line, f"line {number}"), f"line {number}"))
        for number, line in enumerate(text.split("\n"), start=1)
        if line.strip()
    ]

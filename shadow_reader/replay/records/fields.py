"""Checked access to a record's JSON: a surprise is a ``RecordError`` that says where, no crash.

The standard library's ``json`` reads the files, not a faster one: agents written in JavaScript cut
strings anywhere, so records do hold lone surrogates, which stricter readers refuse.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from shadow_reader.errors import RecordError


def parse(text: str, where: str) -> Any:
    """The JSON value of ``text``.

    Raises:
        RecordError: it is none, or nested too deeply to be read.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{where} is not valid JSON: {error}", where=where) from error


def as_object(value: Any, where: str) -> dict[str, Any]:
    """``value`` if it is a JSON object."""
    if not isinstance(value, dict):
        raise _wrong(value, where, "an object")
    return value


def as_list(value: Any, where: str) -> list[Any]:
    """``value`` if it is a JSON array; missing counts as empty."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise _wrong(value, where, "an array")
    return value


def as_text(value: Any, where: str) -> str:
    """``value`` if it is a string; missing counts as empty."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _wrong(value, where, "a string")
    return value


def paragraphs(texts: Iterable[str]) -> str:
    """Those of the texts that say anything, a blank line between them."""
    return "\n\n".join(text for text in texts if text.strip())


def as_arguments(value: Any) -> dict[str, Any]:
    """A tool call's arguments; what is not an object (a broken call) stands under ``input``."""
    if value is None:
        return {}
    return value if isinstance(value, dict) else {"input": value}


def _wrong(value: Any, where: str, expected: str) -> RecordError:
    found = type(value).__name__
    return RecordError(f"{where} must be {expected}, found {found}", where=where, found=found)

"""Pi's session file: JSON lines, a ``session`` header and entries.

- Version 1 is a plain list. From version 2 on entries form a tree (``id``, ``parentId``), and the
  conversation is the path to the file's last entry.
- A ``compaction`` starts the prompts over: its summary, then what was said from the first entry
  it kept (an id; in version 1 an index into the file's lines, the header's being 0).
- Failed and cancelled answers (``stopReason`` ``error`` or ``aborted``) were requests, and later
  prompts lack them.
- Commands that the person ran (``bashExecution``), summaries of abandoned branches and messages
  of extensions are shown to the model as user messages. The wording around them is ours.

The file has neither the system prompt nor the tools' schemas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from shadow_reader.replay.records.fields import (
    as_arguments,
    as_list,
    as_object,
    as_text,
    paragraphs,
)
from shadow_reader.replay.records.recording import Draft, Message, Recording, ToolCall

SOURCE = "pi"


@dataclass(frozen=True, slots=True)
class _Entry:
    """A line below the header; ``index`` counts the file's lines from 0."""

    index: int
    number: int
    id: str
    parent: str
    content: dict[str, Any]

    @property
    def where(self) -> str:
        return f"line {self.number}"


def is_session(line: dict[str, Any]) -> bool:
    """Whether a parsed first line is the header of a Pi session."""
    return line.get("type") == "session" and "id" in line


def read_session(lines: Sequence[tuple[int, dict[str, Any]]]) -> Recording:
    """The conversation on the path to the last entry.

    Args:
        lines: line number (from 1) and parsed object of every line, the header first.

    Raises:
        RecordError: a field has another shape, or no answer of a model is in it.
    """
    draft = Draft(SOURCE)
    draft.session = as_text(lines[0][1].get("id"), "line 1: id")
    entries = [
        _Entry(
            index,
            number,
            as_text(line.get("id"), f"line {number}: id"),
            as_text(line.get("parentId"), f"line {number}: parentId"),
            line,
        )
        for index, (number, line) in enumerate(lines)
        if index
    ]
    path = _path(draft, entries)
    said: dict[int, list[Message]] = {}
    for entry in path:
        if entry.content.get("type") == "compaction":
            _restart(draft, entry, path, said)
        else:
            said[entry.index] = _messages(draft, entry)
            for message in said[entry.index]:
                draft.add(message)
    return draft.done()


def _path(draft: Draft, entries: list[_Entry]) -> list[_Entry]:
    if not entries or not entries[-1].id:
        return entries
    by_id = {entry.id: entry for entry in entries}
    path: list[_Entry] = []
    taken: set[int] = set()
    entry: _Entry | None = entries[-1]
    while entry is not None and entry.index not in taken:
        taken.add(entry.index)
        path.append(entry)
        entry = by_id.get(entry.parent)
    draft.skip("entries of other branches", len(entries) - len(path))
    return path[::-1]


def _restart(
    draft: Draft, entry: _Entry, path: list[_Entry], said: dict[int, list[Message]]
) -> None:
    summary = as_text(entry.content.get("summary"), f"{entry.where}: summary")
    first = entry.content.get("firstKeptEntryId", entry.content.get("firstKeptEntryIndex"))
    starts = [other.index for other in path if first in (other.id, other.index)]
    kept = [
        replace(message, history=True)
        for other in path
        if starts and starts[0] <= other.index < entry.index
        for message in said.get(other.index, [])
        if message.kept
    ]
    text = f"[The conversation so far, summed up]\n\n{summary}"
    draft.add(Message("user", text, restart=True))
    for message in kept:
        draft.add(message)


def _messages(draft: Draft, entry: _Entry) -> list[Message]:
    kind = entry.content.get("type")
    if kind == "branch_summary":
        summary = as_text(entry.content.get("summary"), f"{entry.where}: summary")
        return [Message("user", f"[What another branch of this session did]\n\n{summary}")]
    if kind == "custom_message":
        return [Message("user", _text(draft, entry.content.get("content"), entry.where))]
    if kind != "message":
        draft.skip(f"entries of type {kind}")
        return []
    message = as_object(entry.content.get("message"), f"{entry.where}: message")
    role = message.get("role")
    if role == "user":
        return [Message("user", _text(draft, message.get("content"), entry.where))]
    if role == "toolResult":
        call = as_text(message.get("toolCallId"), f"{entry.where}: toolCallId")
        return [Message("tool", _text(draft, message.get("content"), entry.where), call=call)]
    if role == "assistant":
        return _assistant(draft, message, entry.where)
    if role == "bashExecution" and not message.get("excludeFromContext"):
        return [Message("user", _command(message, entry.where))]
    if role in ("custom", "hookMessage"):
        return [Message("user", _text(draft, message.get("content"), entry.where))]
    draft.skip(f"messages of role {role}")
    return []


def _assistant(draft: Draft, message: dict[str, Any], where: str) -> list[Message]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for n, value in enumerate(as_list(message.get("content"), f"{where}: content")):
        block = as_object(value, f"{where}: content[{n}]")
        kind = block.get("type")
        if kind == "text":
            texts.append(as_text(block.get("text"), f"{where}: text"))
        elif kind == "thinking":
            thoughts.append(as_text(block.get("thinking"), f"{where}: thinking"))
        elif kind == "toolCall":
            calls.append(
                ToolCall(
                    as_text(block.get("name"), f"{where}: name"),
                    as_arguments(block.get("arguments")),
                    as_text(block.get("id"), f"{where}: id"),
                )
            )
        else:
            draft.skip(f"blocks of type {kind}")
    stop = message.get("stopReason")
    failed = stop in ("error", "aborted")
    text = paragraphs(texts)
    reasoning = paragraphs(thoughts)
    if not (text or reasoning or calls):
        draft.skip("requests without an answer")
        return []
    return [
        Message(
            "assistant",
            text,
            reasoning,
            tuple(calls),
            finished=not failed and stop != "length",
            kept=not failed,
        )
    ]


def _text(draft: Draft, content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for n, value in enumerate(as_list(content, f"{where}: content")):
        block = as_object(value, f"{where}: content[{n}]")
        if block.get("type") == "text":
            texts.append(as_text(block.get("text"), f"{where}: text"))
        elif block.get("type") == "image":
            draft.skip("images and files")
            texts.append(f"[{block.get('mimeType') or 'image'}]")
        else:
            draft.skip(f"blocks of type {block.get('type')}")
    return "\n".join(texts)


def _command(message: dict[str, Any], where: str) -> str:
    command = as_text(message.get("command"), f"{where}: command")
    output = as_text(message.get("output"), f"{where}: output").rstrip("\n")
    code = message.get("exitCode")
    ending = f"\n(exit code {code})" if code else ""
    return f"I ran `{command}`. It printed:\n\n```\n{output}\n```{ending}"
